-- expect: more than 5000000 instructions
while true do print(("x"):rep(100000)) end -- here
