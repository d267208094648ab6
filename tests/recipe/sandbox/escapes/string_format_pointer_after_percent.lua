-- expect: .%p. shows where things lie
return ("%%%p"):format(print) -- here
