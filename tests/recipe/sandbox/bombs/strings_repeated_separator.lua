-- expect: more than 16.0 MiB of memory
return (""):rep(1e12 // 1, "x") -- here
