#include "data/small_tokenizer.h"
#include "program.h"

#include <gmock/gmock.h>

using namespace fvlm;
using testing::HasSubstr;

namespace {

struct TokenizeVerb : test::Program {
  TokenizeVerb() { write_file_atomic(scratch / "tokenizer.json", test::small_tokenizer().dump()); }
};

TEST_F(TokenizeVerb, JsonLinesTakeTextWithLineBreaks) {
  write_file_atomic(scratch / "lines", "\"abc\\nab\"\n\"\"\n");
  const auto ran = run("tokenize tokenizer.json --json-lines < lines");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out, "[257,10,256]\n[]\n");
  write_file_atomic(scratch / "ids", ran.out);
  EXPECT_EQ(run("tokenize tokenizer.json --decode < ids").out, "\"abc\\nab\"\n\"\"\n");
  write_file_atomic(scratch / "plain", "\"abc\"\n");
  EXPECT_EQ(run("tokenize tokenizer.json < plain").out, "[34,257,34]\n") << "without it the quotes are text";
}

TEST_F(TokenizeVerb, WhatIsNoJsonStringIsNamedByItsLine) {
  write_file_atomic(scratch / "lines", "\"abc\"\nabc\n");
  const auto ran = run("tokenize tokenizer.json --json-lines < lines");
  EXPECT_EQ(ran.code, 4);
  EXPECT_THAT(ran.err, HasSubstr("standard input, line 2: expected a JSON string"));
  EXPECT_EQ(run("tokenize tokenizer.json --json-lines --decode < lines").code, 2);
}

} // namespace
