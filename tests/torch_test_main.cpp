// main() of the tests that link LibTorch: a case is a process, which would need half as long to end as to start.
#include "base/process_end.h"

#include <gmock/gmock.h>

int main(int count, char** words) {
  testing::InitGoogleMock(&count, words);
  fvlm::end_process(RUN_ALL_TESTS());
}
