-- expect: require cannot read
require(("a"):rep(5000)) -- here
