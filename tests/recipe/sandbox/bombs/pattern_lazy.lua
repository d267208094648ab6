-- expect: more than 5000000 instructions
return ("a"):rep(200):match((".-"):rep(10) .. "b") -- here
