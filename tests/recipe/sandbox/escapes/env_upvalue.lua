-- expect: _ENV is not allowed
local function f() return _ENV end -- here
return f()
