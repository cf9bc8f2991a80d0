// makefile: what was built with other flags is built again, and nothing else. Programs that only write down what they
// are asked for stand in for the compilers.
#include "tests/script.h"

using namespace gated;

namespace {

// What a copy of this repository would be compiled from: the words of every call, a line each.
class Copy {
 public:
  Copy() {
    REQUIRE(
        f.run("cp -r {repo}/Makefile {repo}/train_gpt.cu {repo}/core {repo}/kernels {repo}/layers {repo}/dataloader "
              "{repo}/training {repo}/tests {repo}/scripts .")
            .exit_code == 0);
    f.write("machine", "x86_64-linux-gnu");
    for (const char* name : {"cc", "cuda/bin/nvcc"})
      f.program(
          name,
          "[ \"$1\" = -dumpmachine ] && exec cat machine\necho \"$*\" >>'" + (f / "calls") +
              "'\nwhile [ $# -gt 0 ]; do [ \"$1\" = -o ] && { echo >\"$2\"; echo >\"${2%.o}.ptx\"; }; shift; done");
  }
  std::string make(const std::string& words) const {
    f.write("calls", "");
    const std::string said = f.done("env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make CXX=./cc " + words);
    return f.read("calls");
  }

  const Folder f;
};

}  // namespace

TEST_CASE("makefile: another compiler, CPU or GPU builds again what depends on it, and the same nothing",
          "[makefile]") {
  const Copy copy;
  const std::string nvcc = "NVCC=cuda/bin/nvcc CUDA_ARCH=80";
  const auto linked_with_cuda = [](const std::string& calls) {
    return matches(calls, "-o train [^\n]*cuda/units/program\\.o").size() > 0;
  };
  std::string calls = copy.make("NVCC= ARCH=native");
  REQUIRE(contains(calls, "-o build/release/kernels/adamw.o"));
  REQUIRE(!contains(calls, "-DWITH_CUDA"));
  REQUIRE(!linked_with_cuda(calls));
  REQUIRE(copy.make("NVCC= ARCH=native").empty());

  calls = copy.make(nvcc);
  REQUIRE(contains(calls, "-DWITH_CUDA"));
  REQUIRE(linked_with_cuda(calls));
  REQUIRE(!contains(calls, "-o build/release/kernels/adamw.o"));
  REQUIRE(!contains(calls, "-o build/host/dataloader.o"));
  REQUIRE(copy.make(nvcc).empty());
  calls = copy.make("NVCC=cuda/bin/nvcc CUDA_ARCH=90");
  REQUIRE(contains(calls, "code=[sm_90"));
  REQUIRE(linked_with_cuda(calls));
  REQUIRE(!contains(calls, "-o build/release/"));

  calls = copy.make("NVCC=");
  REQUIRE(contains(calls, "-o build/release/training/main.o"));
  REQUIRE(!contains(calls, "-DWITH_CUDA"));
  REQUIRE(!linked_with_cuda(calls));
  REQUIRE(!contains(calls, "-o build/release/kernels/adamw.o"));
  REQUIRE(contains(calls, " -Werror=switch "));

  calls = copy.make("NVCC= ARCH=x86-64");
  REQUIRE(says(calls, {"-o build/release/kernels/adamw.o", "-o build/release/layers/model.o",
                       "-o build/release/training/main.o", "-o train "}));
  REQUIRE(!contains(calls, "-o build/host/dataloader.o"));
  REQUIRE(copy.make("NVCC= ARCH=x86-64 CXX='ccache ./cc'").empty());
  REQUIRE(contains(copy.make("NVCC= ARCH=x86-64 CXXFLAGS=-O2"), "-o build/release/kernels/adamw.o"));

  // A test's object is kept, and another folder has flags of its own.
  const std::string test = "NVCC= BUILD=other other/release/test_bias";
  REQUIRE(contains(copy.make(test), "other/release/test_bias"));
  REQUIRE(fs::exists(copy.f / "other/release/tests/test_bias.o"));
  REQUIRE(copy.make(test).empty());
}

TEST_CASE("makefile: a compiler for ARM64 gets no flag of x86-64", "[makefile]") {
  const Copy copy;
  const auto fast = [&](const std::string& words) {
    return copy.make("NVCC= build/release/kernels/cpu/matmul_cpu.o " + words);
  };
  REQUIRE(says(fast("ARCH=native"), {" -mprefer-vector-width=512 -march=native "}));
  copy.f.write("machine", "aarch64-linux-gnu");
  const std::string machine = copy.f.run("uname -m").text, calls = fast("");
  REQUIRE(contains(calls, machine == "aarch64\n" ? " -mcpu=native " : " -march=armv8-a "));
  REQUIRE(!contains(calls, "-mprefer-vector-width"));
  REQUIRE(contains(calls, " -fno-schedule-insns "));
  REQUIRE(contains(fast("ARCH=native"), " -mcpu=native "));
  REQUIRE(contains(fast("ARCH=armv8.2-a"), " -march=armv8.2-a "));
  REQUIRE(!contains(calls, " -Xpreprocessor "));
  copy.f.write("machine", "arm64-apple-darwin23");
  REQUIRE(says(fast("ARCH=native"), {" -Xpreprocessor -fopenmp ", " -O3 -mcpu=native "}));
}

TEST_CASE("makefile: without nvcc `make ptx` says so before it builds", "[makefile]") {
  const Copy copy;
  const Said said = copy.f.run("env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make CXX=./cc NVCC= ptx KERNEL=rmsnorm");
  REQUIRE(says(ended(said, 2).text, {"make ptx: nvcc was not found", "install CUDA"}));
  REQUIRE(!fs::exists(copy.f / "build/rehearsal"));
}

TEST_CASE("makefile: every file of the operations is in one of nvcc's units, and a new one joins", "[makefile]") {
  const Copy copy;
  copy.f.write("kernels/new_idea.cu", "");
  copy.f.write("kernels/bf16/new_tile.cu", "");
  copy.make("NVCC=cuda/bin/nvcc build/rehearsal/kernels.ptx build/cuda/kernels.ptxas");
  const auto lines = [&](const std::string& command) { return copy.f.run(command + " | LC_ALL=C sort").text; };
  const std::string files = lines("ls kernels/*.cu kernels/*/*.cu kernels/*/*.cpp");
  REQUIRE(contains(files, "kernels/new_idea.cu\n"));
  for (const char* half : {"cuda", "rehearsal"}) {
    const std::string units = format("ls build/%s/units/*.o | sed 's|.*/||; s|[.]o$||'", half);
    REQUIRE(lines(format("for u in $(%s); do sed -n 's/^#include \"\\(.*\\)\"/\\1/p' build/cuda/units/$u.cu; done",
                         units.c_str())) == files);
  }
}

TEST_CASE("makefile: gpu-check goes on from results/ where build/ is empty, and leaves there what came of it",
          "[makefile]") {
  const Copy copy;
  copy.f.program("scripts/gpu_check.py", "[ $1 != --wishes ] || exit 0\ncat $1 >>seen\necho later >>$1\nexit 2");
  copy.f.write("results/gpu_check.json", "sent\n");
  const auto check = [&] {
    return copy.f.run(
        "env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make CXX=./cc NVCC=cuda/bin/nvcc CUDA_ARCH=90 gpu-check");
  };
  ended(check(), 2);
  REQUIRE(copy.f.read("seen") == "sent\n");
  REQUIRE(copy.f.read("results/gpu_check.json") == "sent\nlater\n");
  // What build/ holds counts more.
  copy.f.write("results/gpu_check.json", "another\n");
  check();
  REQUIRE(copy.f.read("seen") == "sent\nsent\nlater\n");
}
