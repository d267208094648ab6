-- expect: more than 5000000 instructions
for i = 1, 1e9 do local s = (""):rep(1e15 // 1) end -- here
