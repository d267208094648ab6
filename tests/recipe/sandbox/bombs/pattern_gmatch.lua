-- expect: more than 5000000 instructions
for a in ("a"):rep(100000):gmatch("a-b") do end -- here
