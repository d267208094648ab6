-- expect: more than 5000000 instructions
return ("("):rep(100000):find("%b()") -- here
