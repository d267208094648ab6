-- expect: attempt to index a nil value .global .io.
return io.popen("cat ../secret.lua"):read("a") -- here
