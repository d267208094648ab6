-- expect: more than 5000000 instructions
return ("a"):rep(100):find((".*"):rep(20) .. "b") -- here
