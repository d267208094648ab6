-- expect: a table with a metatable cannot be part of a recipe
return { setmetatable({}, { __metatable = false, adamw = true, "adamw" }) }
