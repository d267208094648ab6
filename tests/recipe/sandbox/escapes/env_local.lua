-- expect: _ENV is not allowed
local print = print
local _ENV = { print = print } -- here
return 1
