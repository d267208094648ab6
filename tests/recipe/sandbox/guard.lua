-- Runs a case as a module, then looks whether the libraries are what they were.
local libraries = { string = string, math = math, table = table, utf8 = utf8, coroutine = coroutine, fvlm = require "fvlm" }
local before, pairs, pcall, require, error, getmetatable = {}, pairs, pcall, require, error, getmetatable
for name, library in pairs(libraries) do
  local copy = {}
  for key, value in pairs(library) do copy[key] = value end
  before[name] = copy
end
local rep, upper = string.rep, string.upper

pcall(require, "case")

for name, library in pairs(libraries) do
  local seen, copy = 0, before[name]
  for key, value in pairs(library) do
    if copy[key] ~= value then error("the case changed " .. name .. "." .. key, 0) end
    seen = seen + 1
  end
  for _ in pairs(copy) do seen = seen - 1 end
  if seen ~= 0 then error("the case took something from " .. name, 0) end
  if getmetatable(library) ~= false then error("the case opened " .. name, 0) end
end
if ("x").rep ~= rep or ("x"):upper() ~= upper("x") or getmetatable("") ~= nil then error("the case changed strings", 0) end
if "1" + 1 ~= 2 or ("%d"):format(3) ~= "3" then error("the case changed what strings do", 0) end
return "intact"
