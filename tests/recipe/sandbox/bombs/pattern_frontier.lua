-- expect: more than 5000000 instructions
return ("a"):rep(1000000):find(("%f[a]a*"):rep(20) .. "b") -- here
