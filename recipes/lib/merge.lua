-- merge(base, changes): returns a new table with the fields of both; those of `changes` win. Nested tables are merged
-- recursively; lists and constructed tables are replaced. Use it to derive one recipe from another.
local function is_plain(value) return type(value) == "table" and getmetatable(value) == nil and #value == 0 end

local function merge(base, changes)
  local merged = {}
  for key, value in pairs(base) do merged[key] = value end
  for key, value in pairs(changes) do
    local old = merged[key]
    merged[key] = is_plain(old) and is_plain(value) and merge(old, value) or value
  end
  return merged
end

return function(base, changes)
  if type(base) ~= "table" or type(changes) ~= "table" then error("merge takes two tables", 2) end
  return merge(base, changes)
end
