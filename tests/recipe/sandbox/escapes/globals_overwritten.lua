-- replacing a global changes nothing for the engine
pairs, next, type, tostring, error, assert = nil
string, table, math = nil
local fvlm = require "fvlm"
local made = fvlm.adamw { lr = 1 }
if ("x"):rep(3) ~= "xxx" or made.lr ~= 1 then return "broken" end
return "contained"
