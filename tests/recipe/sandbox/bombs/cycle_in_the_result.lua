-- expect: a table contains itself
local t = { a = {} }
t.a.b = t
return t
