-- expect: .%p. shows where things lie
return ("%-20p"):format(print) -- here
