-- expect: more than 5000000 instructions
return ("a"):rep(100000):find("(.*)%1b") -- here
