-- expect: pattern too complex
return ("x"):rep(1000):find(("("):rep(31) .. (".-"):rep(300) .. (")"):rep(31) .. "y") -- here
