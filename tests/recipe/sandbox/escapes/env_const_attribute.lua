-- expect: _ENV is not allowed
-- CVE-2022-28805: a heap overflow in the parser of Lua 5.4.4
local _ENV <const> = {} -- here
X = 1
