-- expect: cannot set .rep.*read-only
function string.rep() return "mine" end -- here
