-- expect: more than 5000000 instructions
repeat until false -- here
