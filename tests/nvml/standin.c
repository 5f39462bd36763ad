/* A stand-in for NVIDIA's libnvidia-ml.so.1, for tests on machines without a GPU.
 *
 * It exports the functions that pynvml calls. Their results come from a text file of key=value lines,
 * which NVML_STANDIN names and which is read at every call, so a test can change the values while a
 * probe runs:
 *
 *   count=2                    the number of GPUs
 *   init=9                     nvmlInit fails with this code
 *   hang=nvmlDeviceGetUUID     this call does not return while the line exists
 *   crash=nvmlDeviceGetUUID    this call aborts the process
 *   event0=gpu1 8 79 -1 -1     an event: GPU, type bit, data, GPU instance, compute instance
 *   gpu0.name=..., gpu0.uuid=..., gpu0.memory=TOTAL USED (MiB), gpu0.utilization=, gpu0.power=,
 *   gpu0.temperature=, gpu0.ecc=, gpu0.processes=PID PID/MIB ...
 *   gpu0.mig=1                 MIG mode is on; gpu0.mig3.uuid=... makes slice 3, with gi= and ci=
 *   gpu0.nvlink=1 2            the GPUs that it reaches over NVLink
 *   gpu0.ancestors=- 10 50 50  its common ancestor with each GPU, as NVML's topology level
 *   gpu0.numa=1                the bits of its nearest NUMA nodes
 *   gpu0.lost=15               every call on it, and on its slices, fails with this code
 *   gpu0.handle=15             getting its handle fails with this code
 *
 * A value `!N` makes its call fail with code N; a missing one means "not supported". As in the real
 * library, events from before an event set was registered are not delivered.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };
enum { MAX_GPUS = 16, MAX_SLICES = 7, LINE = 512 };

typedef unsigned long long u64;
typedef struct { char key[32]; char gpu[16]; } Device;
typedef struct { Device *device; u64 types; unsigned next; } EventSet;
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned version, sensor; int celsius; } Temperature;
typedef struct { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; } Process;
typedef struct { Device *device; u64 type, data; unsigned gpu_instance, compute_instance; } EventData;

static Device gpus[MAX_GPUS], slices[MAX_GPUS][MAX_SLICES];

/* ---- the file ---- */

static int find(const char *key, char value[LINE]) {
    const char *path = getenv("NVML_STANDIN");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[LINE];
    size_t length = strlen(key);
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, key, length) && line[length] == '=') {
            strcpy(value, line + length + 1);
            found = 1;
        }
    }
    if (file) fclose(file);
    return found;
}

static int code(const char *key) {
    char value[LINE];
    return find(key, value) ? atoi(value) : SUCCESS;
}

static int text(Device *device, const char *field, char value[LINE]) {
    char key[64];
    snprintf(key, sizeof key, "%s.%s", device->key, field);
    if (!find(key, value)) return NOT_SUPPORTED;
    return value[0] == '!' ? atoi(value + 1) : SUCCESS;
}

static int number(Device *device, const char *field, unsigned *out) {
    char value[LINE];
    int result = text(device, field, value);
    if (result == SUCCESS) *out = (unsigned)strtoul(value, NULL, 10);
    return result;
}

static int string(Device *device, const char *field, char *out, unsigned size) {
    char value[LINE];
    int result = text(device, field, value);
    if (result == SUCCESS) snprintf(out, size, "%s", value);
    return result;
}

/* ---- the start of every call: it may hang, crash, or fail because the device is lost ---- */

static int enter(const char *call, Device *device) {
    char value[LINE], key[64];
    if (find("crash", value) && !strcmp(value, call)) abort();
    while (find("hang", value) && !strcmp(value, call)) usleep(10000);
    if (!device) return SUCCESS;
    snprintf(key, sizeof key, "%s.lost", device->gpu);
    return code(key);
}

#define ENTER(device) do { int lost = enter(__func__, device); if (lost) return lost; } while (0)

/* ---- the library ---- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    ENTER(NULL);
    return code("init");
}

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int result) { (void)result; return "an error of the stand-in"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER(NULL);
    *count = (unsigned)code("count");
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out) {
    ENTER(NULL);
    if (index >= MAX_GPUS) return INVALID_ARGUMENT;
    Device *gpu = &gpus[index];
    snprintf(gpu->gpu, sizeof gpu->gpu, "gpu%u", index);
    snprintf(gpu->key, sizeof gpu->key, "gpu%u", index);
    unsigned failure = 0;
    number(gpu, "handle", &failure);
    *out = gpu;
    return (int)failure;
}

/* ---- one device ---- */

int nvmlDeviceGetName(Device *device, char *out, unsigned size) {
    ENTER(device);
    return string(device, "name", out, size);
}

int nvmlDeviceGetUUID(Device *device, char *out, unsigned size) {
    enter(__func__, NULL); /* works even for a lost GPU */
    return string(device, "uuid", out, size);
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    ENTER(device);
    char value[LINE];
    int result = text(device, "memory", value);
    if (result != SUCCESS) return result;
    u64 total = 0, used = 0;
    sscanf(value, "%llu %llu", &total, &used);
    *memory = (Memory){total << 20, (total - used) << 20, used << 20};
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *rates) {
    ENTER(device);
    rates->memory = 0;
    return number(device, "utilization", &rates->gpu);
}

int nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts) {
    ENTER(device);
    return number(device, "power", milliwatts);
}

int nvmlDeviceGetTemperatureV(Device *device, Temperature *temperature) {
    ENTER(device);
    return number(device, "temperature", (unsigned *)&temperature->celsius);
}

int nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *celsius) {
    (void)sensor;
    ENTER(device);
    return number(device, "old_temperature", celsius);
}

int nvmlDeviceGetTotalEccErrors(Device *device, unsigned type, unsigned counter, u64 *errors) {
    ENTER(device);
    unsigned uncorrected = 1, volatile_ones = 0, found = 0;
    if (type != uncorrected || counter != volatile_ones) return NOT_SUPPORTED;
    int result = number(device, "ecc", &found);
    *errors = found;
    return result;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *processes) {
    ENTER(device);
    char value[LINE];
    int result = text(device, "processes", value);
    if (result != SUCCESS) return result;
    unsigned room = *count, found = 0;
    for (char *pid = strtok(value, " "); pid; pid = strtok(NULL, " "), found++)
        if (processes && found < room) {
            const char *mib = strchr(pid, '/');
            processes[found] = (Process){(unsigned)atoi(pid), mib ? (u64)atoll(mib + 1) << 20 : ~0ull, ~0u, ~0u};
        }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* ---- topology ---- */

static int word(const char *words, unsigned index, unsigned *out) {
    char copy[LINE];
    snprintf(copy, sizeof copy, "%s", words);
    char *found = strtok(copy, " ");
    while (found && index--) found = strtok(NULL, " ");
    if (!found || *found == '-') return NOT_SUPPORTED;
    *out = (unsigned)strtoul(found, NULL, 10);
    return SUCCESS;
}

int nvmlDeviceGetP2PStatus(Device *one, Device *other, unsigned kind, unsigned *status) {
    ENTER(one);
    char value[LINE];
    unsigned nvlink = 2, not_supported = 5, peer;
    if (kind != nvlink) return INVALID_ARGUMENT;
    int result = text(one, "nvlink", value);
    *status = not_supported;
    for (unsigned i = 0; result == SUCCESS && word(value, i, &peer) == SUCCESS; i++)
        if (peer == (unsigned)(other - gpus)) *status = 0;
    return result;
}

int nvmlDeviceGetTopologyCommonAncestor(Device *one, Device *other, unsigned *level) {
    ENTER(one);
    char value[LINE];
    int result = text(one, "ancestors", value);
    return result == SUCCESS ? word(value, (unsigned)(other - gpus), level) : result;
}

int nvmlDeviceGetMemoryAffinity(Device *device, unsigned size, unsigned long *nodes, unsigned scope) {
    ENTER(device);
    unsigned near = 0, node_scope = 0;
    if (!size || scope != node_scope) return INVALID_ARGUMENT;
    int result = number(device, "numa", &near);
    nodes[0] = near;
    return result;
}

/* ---- MIG ---- */

int nvmlDeviceGetMigMode(Device *gpu, unsigned *current, unsigned *pending) {
    ENTER(gpu);
    int result = number(gpu, "mig", current);
    *pending = *current;
    return result;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *gpu, unsigned *count) {
    ENTER(gpu);
    *count = MAX_SLICES;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *gpu, unsigned index, Device **out) {
    ENTER(gpu);
    char value[LINE];
    Device *slice = &slices[gpu - gpus][index];
    strcpy(slice->gpu, gpu->gpu);
    snprintf(slice->key, sizeof slice->key, "%s.mig%u", gpu->gpu, index);
    *out = slice;
    return text(slice, "uuid", value) == SUCCESS ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(Device *slice, unsigned *id) {
    ENTER(slice);
    return number(slice, "gi", id);
}

int nvmlDeviceGetComputeInstanceId(Device *slice, unsigned *id) {
    ENTER(slice);
    return number(slice, "ci", id);
}

/* ---- events ---- */

static int event(unsigned index, char value[LINE]) {
    char key[32];
    snprintf(key, sizeof key, "event%u", index);
    return find(key, value);
}

int nvmlEventSetCreate(EventSet **out) {
    ENTER(NULL);
    *out = calloc(1, sizeof **out);
    return SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(Device *device, u64 *types) {
    ENTER(device);
    unsigned found = 0;
    int result = number(device, "events", &found);
    *types = found;
    return result;
}

int nvmlDeviceRegisterEvents(Device *device, u64 types, EventSet *set) {
    ENTER(device);
    char value[LINE];
    if (!types) return INVALID_ARGUMENT;
    *set = (EventSet){device, types, 0};
    while (event(set->next, value)) set->next++;
    return SUCCESS;
}

int nvmlEventSetWait_v2(EventSet *set, EventData *data, unsigned milliseconds) {
    ENTER(NULL);
    char value[LINE], gpu[16];
    int gi, ci;
    while (set->device && event(set->next, value)) {
        set->next++;
        sscanf(value, "%15s %llu %llu %d %d", gpu, &data->type, &data->data, &gi, &ci);
        if (strcmp(gpu, set->device->gpu) || !(data->type & set->types)) continue;
        data->device = set->device;
        data->gpu_instance = (unsigned)gi;
        data->compute_instance = (unsigned)ci;
        return SUCCESS;
    }
    ENTER(set->device); /* the events of a lost GPU come first */
    usleep(1000 * milliseconds);
    return TIMEOUT;
}
