-- expect: (more than 16.0 MiB of memory)
return ("xx"):rep(math.maxinteger) -- here
