-- expect: more than 5000000 instructions
::again::
goto again -- here
