// make_run DIR [PROGRESS]: a made run in an empty folder, to look at its report in a browser.
#include "made_run.h"

#include <cstdlib>

int main(int count, char** words) {
  if (count < 2) return 2;
  std::filesystem::create_directories(words[1]);
  fvlm::test::MadeRun wanted;
  if (count > 2) wanted.last_progress = std::atof(words[2]);
  fvlm::test::make_run(words[1], wanted);
  return 0;
}
