-- expect: more than 5000000 instructions
table.sort({ 3, 2, 1 }, function() while true do end end) -- here
