"""The built-in policies, one in each file. A new file here is found automatically.

Not here: code that several policies share, which belongs in `policy_support`.
"""
