-- expect: more than 50 nested tables
local fvlm = require "fvlm"
local t = {}
for i = 1, 1000 do t = fvlm.adamw { inner = t } end
return t
