-- expect: .%p. is not allowed
return ("%%%p"):format(print) -- here
