-- expect: more than 5000000 instructions
return ("a"):rep(100000):find("[" .. ("b"):rep(100000) .. "]") -- here
