-- expect: a recipe has no _ENV
local print = print
local _ENV = { print = print } -- here
return 1
