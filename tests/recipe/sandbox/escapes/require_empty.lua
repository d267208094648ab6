-- expect: require cannot read
return require "" -- here
