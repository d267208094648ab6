-- expect: 'and' or 'or' after the operator
-- wrong code in Lua 5.4.4 where a function has many constants
return 1 ~ (2 or 3) -- here
