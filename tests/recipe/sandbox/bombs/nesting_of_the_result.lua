-- expect: more than 50 tables within one another
local t = {}
for i = 1, 100 do t = { t } end
return t
