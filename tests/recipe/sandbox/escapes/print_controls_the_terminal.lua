print("\27[2J\27]0;title\7 \r\n \8 harmless")
return "contained"
