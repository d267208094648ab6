-- expect: read-only
rawset(string, "rep", function() return "mine" end) -- here
