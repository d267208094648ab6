-- expect: a function of Lua itself cannot be part of a recipe
return { run = require }
