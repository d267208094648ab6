-- expect: a recipe has no _ENV
local function f() return _ENV end -- here
return f()
