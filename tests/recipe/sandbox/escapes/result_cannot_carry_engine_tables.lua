-- expect: a table with a metatable
return { require "fvlm" }
