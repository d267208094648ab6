-- expect: .%p. is not allowed
return ("%-20p"):format(print) -- here
