// scripts: what watches over the compiled kernels and over a GPU, on input made here: planted PTX, planted words of
// ptxas, and programs that answer as nvidia-smi and compute-sanitizer would.
#include <nlohmann/json.hpp>

#include "tests/fixture_lines.h"
#include "tests/script.h"

using namespace gated;

TEST_CASE_METHOD(Folder, "scripts: the lint refuses PTX that the CPU does not follow bit for bit", "[scripts]") {
  const std::string rounded = contents("tests/fixtures/rounded.ptx");
  const auto lint = [&](const std::string& ptx) {
    write("a.ptx", ptx);
    return run("{repo}/scripts/ptx_lint.sh a.ptx");
  };
  ended(lint(rounded));
  for (const std::string& bad : fixture_lines("unfollowed_ptx.txt"))
    REQUIRE(says(ended(lint(rounded + "\t" + bad + " \t%f1, %f2, %f3;\n"), 1).text,
                 {bad, "FAIL  ptx_lint a.ptx: the CPU does not give the bits of the instructions above"}));
  ended(lint(rounded + "\twgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {%f1}, %rd1, %rd2, %p, 1, -1, 0, 0;\n"),
        1);
  // max.f32 is max_number().
  ended(lint(rounded + "\tmax.f32 \t%f75, %f30, 0f00000000;\n\t@%p1 max.f32 \t%f75, %f30, %f31;\n"));
  REQUIRE(count(lint(rounded + "\tmax.NaN.f32 \t%f75, %f30, %f31;\n\tmin.f32 \t%f75, %f30, 0f00000000;\n").text,
                "%f75") == 2);
  // What wgmma works on stays as it is from the fence to the wait: its sums, and a factor in registers.
  const auto beside_wgmma = [&](const std::string& behind_fence, const std::string& before_wait) {
    return lint(rounded + "\twgmma.fence.sync.aligned;\n" + behind_fence +
                "\twgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%f1, %f2}, {%r1, %r2}, %rd1, %p1, 1, 1, 1;\n" +
                before_wait + "\twgmma.wait_group.sync.aligned 0;\n\tmov.f32 \t%f1, %f9;\n");
  };
  ended(beside_wgmma("\tmul.rn.f32 \t%f3, %f1, %f2;\n", "\tmov.f32 \t%f3, %f1;\n\tst.global.f32 \t[%rd2], %f4;\n"));
  for (const std::string& write :
       {"mul.rn.f32 \t%f2, %f2, %f3;", "mov.f32 \t%f1, 0f00000000;", "@%p1 cvt.rn.bf16x2.f32 \t%r2, %f3, %f4;",
        "ld.shared.v2.b32 \t{%r5, %r1}, [%r7];"}) {
    const std::string line = "\t" + write + "\n",
                      last = "FAIL  ptx_lint a.ptx: registers that wgmma works on are written to\n";
    REQUIRE(says(ended(beside_wgmma(line, ""), 1).text, {" is written after the fence: ", last}));
    REQUIRE(says(ended(beside_wgmma("", line), 1).text, {" is written before the wait: ", last}));
    // Groups: a wait for all but the newest is one for these products where there is a newer one, and else it is not.
    const std::string commit = "\twgmma.commit_group.sync.aligned;\n", wait = "\twgmma.wait_group.sync.aligned 1;\n";
    const std::string newer =
        "\twgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%f7, %f8}, %rd1, %rd2, %p1, 1, 1, 0, 1;\n";
    ended(beside_wgmma("", commit + newer + commit + wait + line));
    REQUIRE(contains(ended(beside_wgmma("", commit + wait + line), 1).text, " is written before the wait: "));
  }

  REQUIRE(contains(lint("\tmov.u32 \t%r1, %tid.x;\n").text, "no floating-point operation in it"));
  REQUIRE(run("{repo}/scripts/ptx_lint.sh").exit_code == 2);
  REQUIRE(ended(run("{repo}/scripts/ptx_lint.sh missing.ptx"), 1).text ==
          "FAIL  ptx_lint missing.ptx: cannot be read\n");
}

// Of which +0 and -0 C leaves the larger open. core/math.cuh has the one that max_number() is on a GPU.
TEST_CASE("scripts: no kernel asks for fmaxf or fminf", "[scripts]") {
  // Comments may speak of them.
  const auto asks = [](const std::string& text) {
    return matches(replaced(text, "//[^\n]*", ""), "\\bf(max|min)f?\\(").size();
  };
  REQUIRE(asks("// fmaxf(a, b)\ny = a / fmaxf(b, c);\nz = fmin(a, b);  // fmax(a, b)\nrow_fmax(a);\n") == 2);
  for (const char* folder : {"kernels", "core"})
    for (const auto& file : fs::recursive_directory_iterator(folder)) {
      INFO(file.path());
      if (file.path().extension().string().starts_with(".cu"))
        REQUIRE(asks(contents(file.path())) == (file.path() == "core/math.cuh" ? 1 : 0));
    }
}

namespace {

// What ptxas -v says of one kernel.
std::string ptxas_says(const char* kernel, int registers, int shared, int spills) {
  return format(
      "ptxas info    : Compiling entry function '%s' for 'sm_80'\nptxas info    : Function properties for %s\n"
      "    %d bytes stack frame, %d bytes spill stores, %d bytes spill loads\n"
      "ptxas info    : Used %d registers, used 1 barriers, %s400 bytes cmem[0]\nptxas info    : Compile time = 1.0 "
      "ms\n",
      kernel, kernel, spills, spills, spills, registers, shared ? format("%d bytes smem, ", shared).c_str() : "");
}

}  // namespace

TEST_CASE_METHOD(Folder, "scripts: what kernels take of a GPU is held to the table", "[scripts]") {
  std::string compiler = "Cuda compilation tools, release 13.0, V13.0.88\n.target sm_80\n";
  const auto check = [&](const std::string& log, const std::string& option = "") {
    write("k.ptxas", compiler + "kernels.cu(3): warning: a line of nvcc's own\n" + log);
    return run("KERNEL_RESOURCES=table.txt {repo}/scripts/kernel_resources.sh " + option + " k.ptxas");
  };
  const auto log = [](int plain_registers, int plain_spills, int tile_registers, int tile_shared, int tile_spills) {
    return ptxas_says("_ZN10gated_nvcc12adamw_kernelEPfm", plain_registers, 0, plain_spills) +
           ptxas_says("_ZN10gated_nvcc11tile_kernelILb1ELi64EEEvPfm", tile_registers, tile_shared, tile_spills);
  };
  REQUIRE(check(log(40, 0, 90, 8448, 16), "--update").exit_code == 0);
  // The kernel that takes little is not in it; 90 registers leave as many warps as 96.
  REQUIRE(contains(read("table.txt"), "\ntile_kernel<true,64> sm_80 96 8448 16 16\n"));
  REQUIRE(!contains(read("table.txt"), "adamw"));

  REQUIRE(check(log(40, 0, 90, 8448, 16)).text == "ok    kernel_resources: 2 kernels\n");
  REQUIRE(check(log(64, 0, 96, 8448, 0)).exit_code == 0);
  const auto refused = [&](const std::string& log, const std::string& why) {
    return says(ended(check(log), 1).text, {why, "--update"});
  };
  REQUIRE(refused(log(65, 0, 90, 8448, 16), "FAIL  adamw_kernel for sm_80: 65 registers, expected at most 64"));
  REQUIRE(refused(log(40, 4, 90, 8448, 16), "FAIL  adamw_kernel for sm_80: spills 4 bytes and loads 4"));
  REQUIRE(refused(log(40, 0, 97, 8448, 16), "tile_kernel<true,64> for sm_80: 97 registers, expected at most 96"));
  REQUIRE(refused(log(40, 0, 90, 8452, 16), "8452 bytes of static shared memory, expected 8448"));
  REQUIRE(refused(log(40, 0, 90, 8448, 20), "spills 20 bytes and loads 20 of them again, expected at most 16 and 16"));

  const char* const waits =
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
      "insufficient "
      "register resources for the wgmma pipeline in function 'tile_kernel'\n";
  REQUIRE(contains(ended(check(log(40, 0, 90, 8448, 16) + waits), 1).text, "products of wgmma wait for each other"));

  // Another compiler decides otherwise on registers and spills, but not on shared memory.
  compiler = "Cuda compilation tools, release 12.4, V12.4.1\n.target sm_80\n";
  REQUIRE(contains(ended(check(log(200, 0, 200, 8448, 99))).text,
                   "not compared: the table is of nvcc 13.0, PTX of sm_80, this is nvcc 12.4"));
  REQUIRE(refused(log(40, 0, 90, 8452, 16), "8452 bytes of static shared memory"));
  REQUIRE(contains(check("").text, "no kernel in it"));
}

TEST_CASE_METHOD(Folder, "scripts: setup says which options it has, and what --into cannot bring", "[scripts]") {
  const char* const of_python = "setup: --into is for libraries; what Python needs comes with: python3 -m pip";
  for (const char* option : {"--into", "--into=", "--all"})
    REQUIRE(ended(run(format("{repo}/scripts/setup.sh %s", option)), 1).text ==
            format("setup: unknown option %s; expected --tests, --bench, --plots, --book, --ranks, --into=DIR or "
                   "--from=PACKAGES\n",
                   option));
  for (const auto& [options, said] : {std::pair("--plots --into=deps", of_python),
                                      {"--book --into=deps", of_python},
                                      {"--ranks --into=deps", "setup: --into brings no MPI"},
                                      {"--from=packages", "setup: --from says what --into=DIR unpacks"},
                                      {"--from=packages --into=deps", "setup: --from=packages: no packages there\n"}}) {
    REQUIRE(ended(run(format("{repo}/scripts/setup.sh %s", options)), 1).text.starts_with(said));
    REQUIRE(!fs::exists(path / "deps"));
  }
}

TEST_CASE_METHOD(Folder, "scripts: those of the shell say what they need before they do anything", "[scripts]") {
  const std::string help = done("{repo}/scripts/setup.sh --help");
  REQUIRE(says(help, {"usage: scripts/setup.sh [--tests]", "--from=PACKAGES "}));
  REQUIRE(!contains(help, "set -eu"));
  program("bin/apt-get", "echo fetched");
  const auto says_at_once = [&](const std::string& command, const std::string& said) {
    REQUIRE(ended(run("PATH=$PWD/bin:$PATH " + command), 1).text == said + "\n");
  };
  for (const char* name : {"''", "--help"})
    says_at_once(format("{repo}/scripts/get_text.sh %s", name),
                 "get_text: expected the name of the file to write: scripts/get_text.sh FILE");
  says_at_once("{repo}/scripts/get_text.sh no/such/text",
               "get_text: no/such/text: there is no folder no/such: make it first");
  says_at_once(
      "env -u SLURM_JOB_ID {repo}/scripts/slurm.sh --out=x",
      "slurm: this is no job of SLURM: sbatch scripts/slurm.sh FLAGS, or without SLURM ./train FLAGS --resume");
  // (-C: where make is run from a folder of its own, it says so)
  const auto make = [&](const std::string& goal) {
    return ended(run("env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL timeout 60 make -s -C {repo} " + goal), 2).text;
  };
  REQUIRE(make("fuzz READER=shard").starts_with("make fuzz READER=shard: expected one of: "));
  REQUIRE(make("ptx").starts_with("no kernel's name holds '': expected a part of one"));
  REQUIRE(make("gpu-check MINUTES=six").starts_with("gpu-check: MINUTES=six: expected a number from 0\n"));
  REQUIRE(
      make("gpu-check STAGES=fast").starts_with("gpu-check: no stage is called 'fast'; expected some of: bitwise "));
}

TEST_CASE_METHOD(Folder, "scripts: setup --into keeps the packages, and --from unpacks them offline", "[scripts]") {
  NEEDS("dpkg-deb --version", "dpkg-deb", "setup --into");
  write("made/DEBIAN/control",
        "Package: libxxhash-dev\nVersion: 1\nArchitecture: all\nMaintainer: a\nDescription: a\n");
  write("made/usr/include/xxhash.h", "a header");
  REQUIRE(run("dpkg-deb -b made xxhash.deb").exit_code == 0);
  program("bin/apt-cache", "echo libxxhash-dev\necho '  Depends: libc6'");
  program("bin/apt-get", "[ \"$*\" = 'download -q libxxhash-dev' ] && cp " + *this / "xxhash.deb" + " .");
  REQUIRE(contains(done("PATH=$PWD/bin:$PATH {repo}/scripts/setup.sh --into=deps"),
                   "setup: 1 packages are unpacked; build with: make DEPS=" + *this / "deps\n"));
  REQUIRE(read("deps/usr/include/xxhash.h") == "a header");

  program("bin/apt-get", "exit 1");
  fs::rename(path / "deps/packages", path / "sent");
  const Said sent = ended(run("PATH=$PWD/bin:$PATH {repo}/scripts/setup.sh --from=sent --into=a/there"));
  REQUIRE(read("a/there/usr/include/xxhash.h") == "a header");
  REQUIRE(fs::exists(path / "sent/xxhash.deb"));
}

// (From any folder it is found: tests/test_sweep.cpp.)
TEST_CASE("scripts: ./train is missed in a line", "[scripts]") {
  WITH_PYTHON(f, "scripts that start ./train");
  f.run("cp -r {repo}/scripts .");
  for (const char* script : {"sweep.py x --grid=--attn=g1", "tables.py p1-4"})
    require_refused_at_once(f.run(format("scripts/%s", script)), "train: not found: run make first");
}

TEST_CASE("scripts: an output that is full is said in a line, one that nobody reads any more is not", "[scripts]") {
  WITH_PYTHON(f, "what scripts print");
  for (const std::string script : {"report.py", "tokenize.py"}) {
    INFO(script);
    const std::string help = "PYTHONUNBUFFERED= {repo}/scripts/" + script + " --help";
    REQUIRE(contains(f.done(help), "usage: " + script));
    REQUIRE(ended(f.run(help + " >/dev/full"), 1).text == "error: standard output: No space left on device\n");
    REQUIRE(f.done(help + " | true") == "");
  }
}

TEST_CASE_METHOD(Folder, "scripts: CUDA is found in CUDA_HOME, then on the path", "[scripts]") {
  program("here/bin/nvcc", "");
  program("here/compute-sanitizer/compute-sanitizer", "");
  program("path/nvcc", "");
  const std::string here = *this / "here", there = *this / "path";
  const auto find = [&](const std::string& environment, const std::string& what) {
    return run("PATH=" + there + ":$PATH " + environment + " {repo}/scripts/find_cuda.sh " + what).text;
  };
  REQUIRE(find("CUDA_HOME=" + here, "nvcc") == here + "/bin/nvcc\n");
  REQUIRE(find("CUDA_HOME=" + here, "compute-sanitizer") == here + "/compute-sanitizer/compute-sanitizer\n");
  REQUIRE(find("CUDA_HOME=/nowhere", "nvcc") == there + "/nvcc\n");
  REQUIRE(find("CUDA_HOME=", "nvcc") == there + "/nvcc\n");
  REQUIRE(find("CUDA_HOME=", "a-program-of-nobody") == "");
}

namespace {

// A GPU that is not there: programs that answer, and write down what they were asked.
struct FakeGpu : Folder {
  std::string python = run("python3 -c 'import sys; print(sys.executable, end=\"\")'").text;
  FakeGpu() {
    program("bin/nvidia-smi", "echo 'Fake 9000, 555.1, 9.0'");
    program("cuda/bin/nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'");
    // (test_round is the one that is tried first, to see whether compute-sanitizer attaches at all)
    program("cuda/bin/compute-sanitizer",
            "tool=$2\nwhile [ \"${1#./}\" = \"$1\" ]; do shift; done\n"  // its options
            "[ $1 = ./test_round ] || echo \"$tool $1 $2 fill=${GATED_FILL:-on} of=$GATED_MULTIPROCESSORS\" >>asked\n"
            "[ $1 != \"$(cat fails 2>/dev/null)\" ]");
    // Of README's runs the fingerprint that it names. What gpu_program.py runs: a checkpoint, and what it wants
    // refused.
    program("train", R"(case $1 in --device=cpu) echo train $* >>asked;; esac
case $* in *--graph*) [ -e text.txt ] || echo $* >>graphs;; esac
case $* in *=20\ *--attn=g1\ --sample-tokens=0) weights=104e50215c21fe39;;
  *=20\ *=0\ --mixer=hybrid) weights=e5f7658b7aaead30;;
  *=20\ *=0\ --experts=8\ --shared-experts=1) weights=2f00aa6ed1f7cc85;;
  *=20\ *=0\ --precision=bf16\ --mma=hopper) weights=c63abe83a0e2878f;; esac
case $* in *--out=run*) mkdir -p run; touch run/step_00000006.safetensors;; esac
case $PTX_MEMORY$* in *--mma=hopper\ --device=cuda) why="--mma=hopper: ampere";;
  *--mma=ampere\ --device=cuda) why="--mma=ampere: hopper";;
  *--norm-rank=512*) why='this GPU gives a block no more';;
  *=cublas*) why=cuBLASLt;;
  [12]*cuda) why=memory;; esac
[ -z "$why" ] || { echo "error: $why" >&2; exit 1; }
echo fingerprint of the weights: ${weights:-0123})");
    program("bin/python3", "[ \"$1\" != -c ] || exit 1\nexec " + python + " \"$@\"");  // without PyTorch
    bench("echo '{\"of\": \"'$2'\", \"rows\": [{\"op\": \"'$2'\", \"rate\": 1}]}' >$1");
    for (const char* test : {"test_round", "test_a_bf16", "test_mma"})
      program(test, format("echo %s $1 needs=$GATED_NEEDS_GPU of=$GATED_MULTIPROCESSORS >>asked\n[ ./%s != \"$(cat "
                           "fails 2>/dev/null)\" ]",
                           test, test));
  }
  // A benchmark of two parts.
  void bench(const std::string& lines) const {
    program("bench", "[ \"$1\" != --parts ] || exec echo copies products\necho bench $2 >>asked\n" + lines);
  }
  Said check(const std::string& environment = "",
             const std::string& arguments =
                 "gpu.json ./bench ./test_round ./test_a_bf16 ./test_mma --cublas ./test_round") const {
    return run("rm -f asked; PATH=" + *this / "bin" + ":$PATH CUDA_HOME=" + *this / "cuda" + " JOBS=1 " + environment +
               " {repo}/scripts/gpu_check.py " + arguments);
  }
  // How many checks the last call ran.
  size_t asked() const { return count(read("asked"), "\n"); }
  // A call that runs so many, and ends so.
  Said ran(size_t checks, const std::string& environment, int exit_code = 0) const {
    const Said said = ended(check(environment), exit_code);
    REQUIRE(asked() == checks);
    return said;
  }
  // The names of the benchmark's rows.
  std::string ops() const {
    std::string all;
    for (const nlohmann::json known = result(); const auto& row : known["bench"]["rows"])
      all += row["op"].get<std::string>() + " ";
    return all;
  }
  nlohmann::json result() const { return nlohmann::json::parse(read("gpu.json")); }
  nlohmann::json entry_of(const std::string& name) const {
    for (const nlohmann::json known = result(); const auto& check : known["checks"])
      if (check["check"] == name) return check;
    return {{"outcome", nullptr}};
  }
  nlohmann::json outcome_of(const std::string& name) const { return entry_of(name)["outcome"]; }
};
// (gpu-check is a script of Python.)
#define FAKE_GPU(f)                                              \
  NEEDS("python3 --version", "python3", "scripts/gpu_check.py"); \
  const FakeGpu f

// Three tests, twice, one of cuBLAS, thirteen runs, five cases of the program and one refusal, which write nothing
// here, two parts of the benchmark, and compute-sanitizer's four tools over two tests and one that is not asked about.
constexpr size_t all_checks = 2 * 3 + 1 + 13 + 6 + 2 + 4 * 3, asked_by_all = all_checks - 6 - 4;
std::string passed(size_t n, size_t failed) {
  return format("gpu-check: %zu passed, %zu failed, 0 left", n, failed);
}

}  // namespace

TEST_CASE_METHOD(Folder, "scripts: faults have their places, or are named", "[scripts]") {
  if (!answers("python3 --version")) return;
  REQUIRE(contains(done("{repo}/scripts/plant_faults.py --check"), "faults, each in its place\n"));
  run("cp -r {repo}/ptx .");
  const std::string check = "{repo}/scripts/plant_ptx_faults.py --check --tree=.";
  REQUIRE(contains(done(check), "19 of 19 faults have their place\n"));
  for (const auto& [options, said] :
       {std::pair("", "build/rehearsal: holds no kernels to plant faults in: run make rehearsal first"),
        {"--only=x", "--only=x: expected numbers of faults, as 3,17-20"},
        {"--only=3-", "--only=3-: expected numbers"},
        {"--only=999", "--only=999: no fault has such a number, expected 1 to "},
        {"--check --tree=nowhere", "nowhere/ptx/"}})
    require_refused_at_once(run(format("{repo}/scripts/plant_ptx_faults.py --tree=. %s", options)), said);
  run("sed -i 's/return a > b ||/return b < a ||/' ptx/thread.h");
  REQUIRE(says(ended(run(check), 1).text,
               {"the smaller of two numbers: NO PLACE: ptx/thread.h holds return a > b || 0 times, expected 1",
                "18 of 19 faults have their place\n"}));
}

TEST_CASE("scripts: a rehearsal is gpu-check without a GPU, and never taken for one", "[scripts]") {
  FAKE_GPU(f);
  f.program("bin/nvidia-smi", "exit 1");
  // A test that launches kernels says so.
  for (const char* test : {"build/test_round", "build/test_mma"})
    f.program(test, "[ -z \"$PTX_LAUNCHED\" ] || echo ${0##*test_}_kernel >>$PTX_LAUNCHED");
  f.write("build/kernels/kernels.index", "round_kernel 0\nmma_kernel 1\n");
  const auto rehearse = [&](const std::string& environment) {
    return f.check(environment, "--rehearsal gpu.json ./train build/test_round build/test_mma");
  };
  REQUIRE(contains(ended(rehearse("")).text, passed(4 * 2 + 1 + 13 + 11, 0)));
  const nlohmann::json result = f.result();
  REQUIRE(result["device"] == "PTX on a CPU");
  REQUIRE(result["driver"] == "none");
  REQUIRE(result["command"] == "make rehearsal");
  REQUIRE(result["checks"][0]["command"] == "PTX_LAUNCHED=build/test_mma.launched build/test_mma [bitwise]");
  REQUIRE(result["checks"][2]["check"] == "launched every kernel");
  REQUIRE(result["checks"][3]["check"] == "races test_mma");
  REQUIRE(result["checks"][3]["command"] == "PTX_RACES=1 PTX_ORDER=reverse build/test_mma [bitwise]");
  REQUIRE(contains(f.read("asked"), "--precision=bf16 --mma=hopper\n"));
  // Another GPU is played: all begins anew, with its tensor cores.
  REQUIRE(rehearse("PTX_GPU=86 STAGES=fingerprint").exit_code == 0);
  REQUIRE(contains(f.read("asked"), "--precision=bf16 --mma=ampere\n"));
  REQUIRE(ended(rehearse("STAGES=bench"), 1).text ==
          "gpu-check: no stage is called 'bench'; expected some of: bitwise launched races drawn consumer "
          "fingerprint program\n");
  // A kernel that no test launches is named. (A file of a run before says nothing.)
  f.write("build/kernels/kernels.index", "_ZN1a11late_kernelEv 0\nmma_kernel 1\n");
  f.write("build/test_round.launched", "_ZN1a11late_kernelEv\n");
  REQUIRE(rehearse("PTX_GPU=80 STAGES='bitwise launched'").exit_code == 1);
  REQUIRE(f.entry_of("launched every kernel")["printed"] == "no test launches\na::late_kernel()");
  // A run that ends in another fingerprint than README's, though both devices agree.
  f.run("sed -i s/weights=104e/weights=104f/ train");
  REQUIRE(rehearse("PTX_GPU=89 STAGES=fingerprint").exit_code == 1);
  REQUIRE(f.entry_of("fingerprint of a run, cpu and cuda")["printed"] ==
          "README 104e50215c21fe39, cpu 104f50215c21fe39, cuda 104f50215c21fe39");
  // Two steps of README's four runs.
  const Said golden = ended(f.run("rm -f asked; {repo}/scripts/gpu_check.py --golden ./train 2"));
  REQUIRE(count(f.read("asked"), "--steps=2 --lr=3e-3 --warmup=2 ") == 4);
  REQUIRE(count(golden.text, "cpu 0123, cuda 0123\n") == 4);
}

TEST_CASE("scripts: gpu-check runs every stage, and writes down what came of it", "[scripts]") {
  FAKE_GPU(f);
  REQUIRE(contains(f.ran(asked_by_all, "").text, passed(all_checks, 0)));
  const std::string asked = f.read("asked"), graphs = f.read("graphs");
  INFO(asked);
  REQUIRE((count(graphs, "\n") == 2 && count(graphs, "--device=cuda ") == 2));  // the GPU's runs alone
  // The stages in their order, and in each the tensor cores first.
  size_t at = 0;
  for (const char* next :
       {"test_mma [bitwise] needs=1 of=\n", "test_a_bf16 [bitwise] needs=1 of=\n", "test_round [bitwise] needs=1 of=\n",
        "test_mma [bitwise] needs=1 of=4\n", "test_round [cublas] needs=1 of=\n", "train --device=cpu",
        "--precision=bf16 --mma=hopper\n", "--mixer=hybrid --experts=8\n", "--recompute=full --dropout=0.1\n",
        "--mixer=gated-delta\n", "--mma=hopper --mixer=hybrid --experts=8", "--head-dim=256",
        "memcheck ./test_mma [bitwise] fill=on of=4\n", "memcheck ./test_a_bf16 [bitwise] fill=on of=4\n",
        "synccheck ./test_mma [bitwise] fill=on of=4\n", "bench copies\n", "bench products\n",
        "racecheck ./test_mma [bitwise] fill=on of=4\n", "initcheck ./test_a_bf16 [bitwise] fill=off of=4\n"}) {
    INFO(next);
    REQUIRE((at = asked.find(next, at)) != std::string::npos);
  }
  // Lines that ./train takes.
  const auto runs = matches(asked + graphs, "--data=[^\n]*");
  for (const auto& run : runs)
    f.done("{repo}/train --describe --device=" + std::string(contains(run[0], "--graph") ? "emulated " : "cpu ") +
           run[0]);
  REQUIRE(runs.size() == 13 + 2);
  const nlohmann::json result = f.result();
  REQUIRE(result["device"] == "Fake 9000");
  REQUIRE(result["commit"] == "");  // this folder is no repository
  REQUIRE(result["driver"] == "555.1");
  REQUIRE(result["nvcc"] == "13.0");
  REQUIRE(result["checks"].size() == all_checks);
  for (const auto& check : result["checks"]) REQUIRE(check["outcome"] == "ok");
  REQUIRE(result["checks"][0]["check"] == "bitwise test_mma");
  REQUIRE(result["checks"][0]["command"] == "./test_mma [bitwise]");
  REQUIRE((f.outcome_of("bench products") == "ok" && f.ops() == "copies products "));

  f.program("bin/nvidia-smi", "echo 'Fake 8000, 555.1, 8.0'");
  REQUIRE(f.check("STAGES=fingerprint").exit_code == 0);
  REQUIRE(contains(f.read("asked"), "--precision=bf16 --mma=ampere\n"));
}

TEST_CASE("scripts: gpu-check runs beside PyTorch where it is, one after the other", "[scripts]") {
  FAKE_GPU(f);
  // Its rows join those of the benchmark. Another such program beside it would find the folder there.
  f.program("bin/python3",
            "case $1 in -c) exit 0;; *gpu_check.py) exec " + f.python +
                " \"$@\";; esac\nmkdir alone || exit 1\necho $(basename $1) $2 $3 $4 >>asked\nsleep 0.2\n"
                "sed -i 's/}]/}, {\"op\": \"'$(basename $1 .py)'\"}]/' gpu-check.logs/bench.json\nrmdir alone");
  ended(f.check("JOBS=3 STAGES='bench pytorch'"));
  REQUIRE(f.read("asked") ==
          "bench copies\nbench products\ncompare_torch.py --device=cuda --rounds=1 --rows=./gpu-check.logs/bench.json\n"
          "torch_kernels.py ./gpu-check.logs/bench.json\n");
  REQUIRE(f.outcome_of("products and attention beside PyTorch") == "ok");
  REQUIRE(f.ops() == "copies products compare_torch torch_kernels ");
}

TEST_CASE("scripts: gpu-check runs checks side by side", "[scripts]") {
  FAKE_GPU(f);
  // Each waits for the other two.
  for (const char* test : {"test_round", "test_a_bf16", "test_mma"})
    f.program(test, "touch $0.here\nwhile [ $(ls *.here | wc -l) -lt 3 ]; do sleep 0.05; done");
  ended(f.check("STAGES=bitwise JOBS=3 CHECK_SECONDS=20"));
  REQUIRE(f.result()["checks"].size() == 3);
}

TEST_CASE("scripts: gpu-check goes on where it stopped", "[scripts]") {
  FAKE_GPU(f);
  const std::string stages = "STAGES='bitwise racecheck bench'";
  f.ran(5, "STAGES='bitwise racecheck'");
  for (const size_t left : {2, 0}) {
    f.ran(left, stages);
    REQUIRE(f.result()["checks"].size() == 8);
    REQUIRE(f.ops() == "copies products ");
  }
  // Other programs: all begins anew.
  f.program("test_mma", "echo another >>asked");
  REQUIRE(contains(f.ran(7, stages).text, "gpu.json is of another build or GPU"));
}

TEST_CASE("scripts: gpu-check begins anew where its file is another's, or half of it is there", "[scripts]") {
  FAKE_GPU(f);
  REQUIRE(f.check("STAGES='cublas bench'").exit_code == 0);
  const nlohmann::json whole = f.result();
  nlohmann::json no_outcome = whole, no_text = whole, no_name = whole, no_rows = whole, no_op = whole;
  no_outcome["checks"][0].erase("outcome");
  no_text["checks"][0]["outcome"] = 1;
  no_name["checks"][0] = "cublas test_round";
  no_rows["bench"] = "fast";
  no_op["bench"]["rows"][0].erase("op");
  for (const std::string& text :
       std::vector<std::string>{"{", "[]", "null", "\xff", R"({"build": 1})", f.read("gpu.json").substr(0, 400),
                                no_outcome.dump(), no_text.dump(), no_name.dump(), no_rows.dump(), no_op.dump()}) {
    f.write("gpu.json", text);
    const Said said = f.ran(3, "STAGES='cublas bench'");
    REQUIRE((contains(said.text, "gpu.json is not what gpu-check has written") || text == R"({"build": 1})"));
    REQUIRE(contains(said.text, "all checks begin anew\n"));
    REQUIRE(f.result() == whole);
  }
  fs::remove(f.path / "gpu.json");
  fs::create_directories(f.path / "gpu.json");
  REQUIRE(ended(f.check(), 1).text == "gpu-check: gpu.json: Is a directory\n");
}

TEST_CASE("scripts: gpu-check that was killed goes on behind the last check that ended", "[scripts]") {
  FAKE_GPU(f);
  f.program("test_a_bf16", "echo $0 >>asked\n[ -e calm ] || { read a b c d e </proc/$PPID/stat; kill -9 $d; }");
  REQUIRE(f.check("STAGES=bitwise").exit_code != 0);
  REQUIRE(f.asked() == 2);
  REQUIRE(f.result()["checks"].size() == 1);
  f.write("calm", "");
  f.ran(2, "STAGES=bitwise");
  REQUIRE(f.result()["checks"].size() == 3);
}

TEST_CASE("scripts: gpu-check leaves a check that somebody ends to the next run", "[scripts]") {
  FAKE_GPU(f);
  for (const char* signal : {"INT", "TERM"}) {
    f.program("test_a_bf16", format("echo $0 >>asked\n[ -e calm ] || kill -%s $$", signal));
    f.ran(3, "STAGES=bitwise", 2);
    REQUIRE(f.result()["checks"].size() == 2);
  }
  f.write("calm", "");
  f.ran(1, "STAGES=bitwise");
  REQUIRE(f.outcome_of("bitwise test_a_bf16") == "ok");
}

TEST_CASE("scripts: what is called without its arguments prints its usage", "[scripts]") {
  const Folder f;
  for (const char* script :
       {"exercise.sh", "exercise.sh take", "gallery.sh -h", "gpu_pack.sh", "gpu_pack.sh out.tar.gz", "run_tests.sh"})
    REQUIRE(says(ended(f.run(format("cd {repo} && scripts/%s", script)), 2).text, {"scripts/"}));
}

TEST_CASE("scripts: gpu-check goes on with programs that were built again from the same source", "[scripts]") {
  FAKE_GPU(f);
  NEEDS("strip --version", "strip", "programs that were built again");
  const auto built = [&](const std::string& source) {
    f.write("test.cpp", source);
    REQUIRE(f.run("g++ -o test_mma test.cpp").exit_code == 0);
    ended(f.check("STAGES=bitwise"));
    return f.read("test_mma");
  };
  // Symbols are what two compilations by nvcc differ in.
  const std::string first = built("void first() {}\nint main() {}\n");
  const std::string second = built("void another() {}\nint main() {}\n");
  REQUIRE(first != second);
  REQUIRE(f.read("asked") == "");
  built("void another() {}\nint main(int n, char**) { return n - 2; }\n");
  REQUIRE(f.asked() == 2);
}

TEST_CASE("scripts: gpu-check begins no check after its minutes, and each run goes on", "[scripts]") {
  FAKE_GPU(f);
  f.write("clock/sitecustomize.py",  // 7 s a look
          "import pathlib, time\nnow = pathlib.Path('now')\ndef look():\n"
          "    n = int(now.read_text()) if now.exists() else 0\n    now.write_text(str(n + 7))\n    return n\n"
          "time.time = look\n");
  size_t runs = 0, asked = 0;
  int exit_code = 2;
  for (; exit_code == 2 && runs < 40; runs++) {
    const Said said = f.check("PYTHONPATH=clock MINUTES=1 STAGES='bitwise cublas bench racecheck synccheck'");
    exit_code = said.exit_code;
    INFO(said.text);
    REQUIRE(f.asked() <= 4);  // each looks twice
    REQUIRE(contains(said.text, "the same command goes on") == (exit_code == 2));
    asked += f.asked();
  }
  REQUIRE(exit_code == 0);
  REQUIRE(runs > 2);
  REQUIRE(asked == 3 + 1 + 2 + 2 * 2);

  // Time that went into the build counts too.
  f.program("test_mma", "echo another >>asked");
  f.program("cuda/bin/compute-sanitizer", "touch tried");
  f.ran(0, "BEGAN=$(($(date +%s) - 70)) MINUTES=1", 2);
  REQUIRE(!fs::exists(f.path / "tried"));
}

TEST_CASE("scripts: gpu-check breaks off at its end what still runs, leaves it and keeps the rows", "[scripts]") {
  FAKE_GPU(f);
  const std::string three_seconds_left = "BEGAN=$(($(date +%s) - 57)) MINUTES=1 ";
  f.bench("echo '{\"rows\": [{\"op\": \"'$2'\"}]}' >$1; [ $2 = copies ] || [ -e calm ] || sleep 30");
  const Said said = ended(f.check(three_seconds_left + "STAGES=bench"), 2);
  REQUIRE(says(said.text, {"\nleft  bench products", "1 passed, 0 failed, 1 left"}));
  REQUIRE(f.outcome_of("bench products").is_null());
  REQUIRE(f.ops() == "copies products ");
  f.write("calm", "");
  f.ran(1, "STAGES=bench");

  // That compute-sanitizer has no time to answer says nothing about it.
  f.program("cuda/bin/compute-sanitizer", "sleep 30");
  REQUIRE(f.check(three_seconds_left + "STAGES=memcheck").exit_code == 2);
  REQUIRE(f.outcome_of("memcheck").is_null());
}

TEST_CASE("scripts: a test that launches nothing has passed under compute-sanitizer, if it says so", "[scripts]") {
  FAKE_GPU(f);
  f.program("cuda/bin/compute-sanitizer",
            "case $* in *test_round*) exit;; *test_mma*) echo 'test cases: 2 | 1 passed | 1 failed';; *) echo 'test "
            "cases: 2 | 2 passed';; esac\necho 'Error: Target application terminated before first instrumented API "
            "call'\nexit 255");
  REQUIRE(contains(ended(f.check("STAGES=memcheck"), 1).text, "gpu-check: failed: memcheck test_mma\n" + passed(2, 1)));
}

TEST_CASE("scripts: gpu-check says what failed, and tries that again when all has been run", "[scripts]") {
  FAKE_GPU(f);
  f.write("fails", "./test_mma");
  const std::string stages = "STAGES='bitwise racecheck'";
  REQUIRE(
      says(ended(f.check(stages), 1).text, {"gpu-check: failed: bitwise test_mma, racecheck test_mma\n" + passed(4, 2),
                                            "FAIL: exit 1; its log: ./gpu-check.logs/racecheck_test_mma.log"}));
  for (const int exit_code : {1, 0}) {
    if (exit_code == 0) fs::remove(f.path / "fails");
    f.ran(2, stages, exit_code);
    REQUIRE(f.result()["checks"].size() == 6);
  }

  f.program("test_round", "echo 'all is well'");
  REQUIRE(f.check("STAGES=bitwise").exit_code == 0);
  REQUIRE(!f.entry_of("bitwise test_round").contains("printed"));

  f.program("test_round", "seq 100\necho 'the third value differs'\nexit 3");
  const Said third = ended(f.check("STAGES=bitwise"), 1);
  REQUIRE(contains(third.text, "\n99\n100\nthe third value differs\n      FAIL: exit 3; its log: "));
  const nlohmann::json entry = f.entry_of("bitwise test_round");
  REQUIRE(entry["outcome"] == "FAIL: exit 3");
  REQUIRE(entry["printed"].get<std::string>().starts_with("1\n2\n"));
  REQUIRE(contains(entry["printed"].get<std::string>(), "\n20\n...\n87\n"));
  REQUIRE(entry["printed"].get<std::string>().ends_with("\n100\nthe third value differs"));
  f.program("test_round", "head -c 100000 /dev/zero | tr '\\0' x; exit 3");
  f.check("STAGES=bitwise");
  REQUIRE(f.entry_of("bitwise test_round")["printed"] == std::string(4000, 'x'));

  f.program("test_round", "sleep 5");
  REQUIRE(contains(f.check("CHECK_SECONDS=1 STAGES=bitwise").text, "FAIL: longer than 1 s"));
  f.program("test_round", "kill -9 $$");  // as where memory is short
  REQUIRE(contains(f.check("STAGES=bitwise").text, "FAIL: exit -9"));
  f.program("test_round", "echo 'No tests ran'");
  REQUIRE(
      contains(f.check("STAGES=bitwise").text, "FAIL: no case ran; its log: ./gpu-check.logs/bitwise_test_round.log"));
  f.program("train", "echo \"fingerprint of the weights: $1\"");
  REQUIRE(contains(ended(f.check("STAGES=fingerprint"), 1).text, "cpu --device=cpu, cuda --device=cuda"));
}

TEST_CASE("scripts: gpu-check names the first step in which two devices differ", "[scripts]") {
  FAKE_GPU(f);
  f.program("train",
            "echo \"fingerprint of the weights: $1\"\nmkdir -p ${2#--out=}\n"
            "case $1 in *cpu) n=0.25;; *) n=0.5;; esac\nprintf '{\"step\": 1, \"loss\": 3, \"seconds\": '$n'}\\n"
            "{\"step\": 2, \"loss\": 2, \"gradient_norm\": '$n'}\\n{\"step\": 3, \"loss\": '$n'}\\n' "
            ">${2#--out=}/log.jsonl");
  const Said differ = ended(f.check("STAGES=fingerprint"), 1);
  REQUIRE(count(differ.text, "they differ first in step 2: gradient_norm 0.25 on the cpu, 0.5 on cuda\n") == 13);
}

TEST_CASE("scripts: gpu-check keeps the rows of a part that failed, and measures that part again", "[scripts]") {
  FAKE_GPU(f);
  f.bench(
      "echo '{\"rows\": [{\"op\": \"'$2'\", \"rate\": '$(cat rate)'}]}' >$1; [ $2 = copies ] || [ $(cat rate) = 5 ]");
  f.write("rate", "4");
  ended(f.check("STAGES=bench"), 1);
  REQUIRE(f.outcome_of("bench copies") == "ok");
  REQUIRE(f.outcome_of("bench products") == "FAIL: exit 1");
  REQUIRE(f.ops() == "copies products ");
  f.write("rate", "5");
  f.ran(1, "STAGES=bench BENCH=products");
  REQUIRE(ended(f.check("STAGES=bench BENCH=sums"), 1).text ==
          "gpu-check: BENCH: the benchmark has no part 'sums'; expected some of: copies products\n");
  const nlohmann::json rows = f.result()["bench"]["rows"];
  REQUIRE(rows.size() == 2);
  REQUIRE((rows[0]["rate"] == 4 && rows[1]["rate"] == 5));
}

TEST_CASE("scripts: gpu-check goes on where compute-sanitizer cannot attach, and says so once", "[scripts]") {
  FAKE_GPU(f);
  f.program("cuda/bin/compute-sanitizer", "echo asked >>tried\necho '========= Error: no debugger here'\nexit 1");
  const std::string stages = "STAGES='bitwise memcheck racecheck'";
  const Said said = ended(f.check(stages), 1);
  REQUIRE(count(said.text, "compute-sanitizer cannot run test_round: ========= Error: no debugger here") == 1);
  REQUIRE(contains(said.text, passed(3, 0) + ", not run: memcheck, racecheck"));
  REQUIRE(count(f.read("tried"), "\n") == 1);
  REQUIRE(f.result()["checks"].size() == 3 + 2);
  REQUIRE(contains(f.outcome_of("racecheck"), "not run: compute-sanitizer cannot run test_round"));
  REQUIRE(f.check("STAGES=bitwise").exit_code == 0);

  // One that finds a fault has attached.
  f.program("cuda/bin/compute-sanitizer", "echo '========= ERROR SUMMARY: 2 errors'\nexit 1");
  REQUIRE(contains(f.check(stages).text, passed(3, 6) + "; results"));
  REQUIRE(f.outcome_of("racecheck").is_null());
}

TEST_CASE("scripts: gpu-check says what cannot be run where there is no mpirun", "[scripts]") {
  FAKE_GPU(f);
  f.run("for tool in timeout cat mkdir touch; do ln -s $(command -v $tool) bin; done");
  const Said said = ended(
      f.run("PATH=" + f / "bin" + " STAGES=program {repo}/scripts/gpu_check.py gpu.json ./bench ./test_round"), 1);
  REQUIRE(contains(said.text, passed(5, 0) + ", not run: program two ranks, a GPU each; results"));
  REQUIRE(f.outcome_of("program two ranks, a GPU each") == "not run: no mpirun is here");
}

TEST_CASE("scripts: gpu-check needs a GPU, stages that exist, and names a missing compute-sanitizer", "[scripts]") {
  FAKE_GPU(f);
  REQUIRE(contains(f.check("STAGES='bitwise speed'").text, "no stage is called 'speed'; expected some of: bitwise"));
  for (const char* words : {"MINUTES=six: expected a number from 0", "CHECK_SECONDS=0: expected a number from 1",
                            "JOBS=-1: expected a number from 1"}) {
    const std::string text = words;
    REQUIRE(f.check(text.substr(0, text.find(':'))).text == "gpu-check: " + text + "\n");
  }
  fs::rename(f.path / "test_mma", f.path / "gone");
  REQUIRE(f.check().text == "gpu-check: ./test_mma: No such file or directory: make gpu-build makes it\n");
  fs::rename(f.path / "gone", f.path / "test_mma");
  fs::remove(f.path / "cuda/bin/compute-sanitizer");
  const Said said = f.check("STAGES='bitwise memcheck'");
  if (f.run("{repo}/scripts/find_cuda.sh compute-sanitizer").text.empty()) {
    REQUIRE(says(ended(said, 1).text,
                 {"no compute-sanitizer in CUDA_HOME (", "3 passed, 0 failed, 0 left, not run: memcheck"}));
  }
  // nvidia-smi says on its standard output what is wrong.
  f.program("bin/nvidia-smi", "echo 'the driver is asleep'; exit 9");
  REQUIRE(contains(ended(f.check(), 1).text, "no GPU answers here: nvidia-smi: the driver is asleep"));
  f.program("bin/nvidia-smi", "echo 'Tesla T4, 555.1, 7.5'");
  REQUIRE(contains(ended(f.check(), 1).text, "Tesla T4, 555.1, 7.5: expected compute capability 8.0 or higher"));
}

namespace {

// What make takes a variable for, on a machine whose nvidia-smi answers so.
std::string make_variable(const Folder& f, const std::string& name, const std::string& smi) {
  f.program("bin/nvidia-smi", smi);
  f.program("cuda/bin/nvcc", "");
  return f.done("cd {repo} && MAKEFLAGS= PATH=" + f / "bin" + ":$PATH make -s NVCC=" + f / "cuda/bin/nvcc" +
                " --eval='show: ; @echo \"$(" + name + ")\"' show");
}

}  // namespace

TEST_CASE_METHOD(Folder, "scripts: make compiles for this machine's GPU, if the kernels run on it", "[scripts]") {
  for (const auto& [smi, arch] : {std::pair("echo 9.0", "90"),
                                  {"echo 8.6; echo 7.5", "86"},
                                  {"echo 12.0", "120"},
                                  {"echo 7.5", "80 90"},
                                  {"echo 7.0", "80 90"},
                                  {"exit 9", "80 90"},
                                  {"echo 'the driver is asleep'; exit 9", "80 90"},
                                  {"echo '[N/A]'", "80 90"}}) {
    INFO(smi);
    REQUIRE(make_variable(*this, "CUDA_ARCH", smi) == std::string(arch) + "\n");
  }
}

TEST_CASE_METHOD(Folder, "scripts: gpu_program names what the two devices print, log and write apart", "[scripts]") {
  if (!answers("python3 --version")) return;
  const auto compare = [&](const std::string& on_cuda, const std::string& name) {
    program("train", "mkdir -p run; seconds=1; case $* in *--device=cuda) seconds=2;\n" + on_cuda +
                         ";; esac\n"
                         "echo 1 >run/step_00000006.safetensors; echo ${weights:-1} >run/weights\n"
                         "echo '{\"step\": 1, \"loss\": '${loss:-1}', \"seconds\": '$seconds'}' >run/log.jsonl\n"
                         "printf 'flags  %s\\ndata   1\\nloss %s  %s tok/s  5%% peak  0:0%s\\n' \"$*\" ${loss:-1} "
                         "$seconds $seconds\n"
                         "[ -z \"$error\" ] || { printf \"$error\" >&2; exit ${code:-1}; }");
    return run("{repo}/scripts/gpu_program.py ./train '" + name + "' hopper");
  };
  const std::string search = "a search in what was read", tensor_cores = "other tensor cores";
  REQUIRE(ended(compare("", search)).text == "the same on both devices\n");
  const auto wrong = [&](const std::string& on_cuda, const std::string& name, const std::string& part) {
    INFO(on_cuda);
    REQUIRE(says(ended(compare(on_cuda, name), 1).text, {part}));
  };
  wrong("weights=2", search, "run/weights differs\n");
  wrong("touch run/more", search, "run/more is written on one device alone\n");
  wrong("loss=2", search, "\n-loss 1\n+loss 2\n");
  wrong("loss=2", search, "run/log.jsonl differs\n");
  wrong("error='error: no\n'", search, "--device=cuda: exit 1: error: no\n");
  REQUIRE(ended(compare("error='ptx: why\nerror: --mma=ampere: this GPU is hopper\n'", tensor_cores)).text ==
          "refused in one line\n");
  wrong("", tensor_cores, "exit 0, expected 1 and one line with --mma=ampere: .*hopper:\n");
  wrong("code=2 error='error: --mma=ampere: this GPU is hopper\n'", tensor_cores, "exit 2, expected 1");
  wrong("error='error: --mma=ampere: this GPU is hopper\nand more\n'", tensor_cores, "exit 1, expected 1 and one line");
  wrong("error='error: CUDA error 700\n'", tensor_cores, "exit 1, expected 1 and one line");
}

TEST_CASE_METHOD(Folder, "scripts: a kernel is shown as nvcc makes it, below the lines of its source", "[scripts]") {
  if (!answers("python3 --version")) return;
  write("src/k.cu", "// first\n  y[i] = x[i];\n  return 3;\n");
  std::string ptx = ".version 9.0\n.target sm_80\n.address_size 64\n\n.file 1 \"/far/away/./src/k.cu\"\n";
  for (const char* name : {"_ZN10gated_nvcc1kEPf", "_ZN10gated_nvcc1kEPi"})
    ptx += format(
        ".visible .entry %s(\n\t.param .u64 %s_param_0\n)\n.maxntid 64, 1, 1\n{\n\t.reg .pred %%p<3>;\n"
        "\t.reg .b64 %%rd<2>;\n\n\t.loc 1 2 3\n\tld.param.u64 \t%%rd1, [%s_param_0];\n"
        "\t.loc 1 3 1, function_name $L__info_string0, inlined_at 1 2 3\n\t@%%p1 bra "
        "\t$L__BB0_1;\n\n$L__BB0_1:\n\tret;\n\n}\n\n",
        name, name, name);
  write("k.ptx", ptx);
  REQUIRE(
      run("{repo}/ptx/show.py 'k(f' k.ptx").text ==
      "k(float*)\n    .reg .pred %p0 to %p2\n    .reg .b64 %rd0 to %rd1\n\nsrc/k.cu:2    y[i] = x[i];\n"
      "    ld.param.u64 %rd1, [param_0];\n\nsrc/k.cu:3 in src/k.cu:2    return 3;\n    @%p1 bra L__BB0_1;\nL__BB0_1:\n"
      "    ret;\n");
  REQUIRE(contains(run("{repo}/ptx/show.py k k.ptx").text, "\nalso: k(int*)\n"));
  REQUIRE(ended(run("{repo}/ptx/show.py '' k.ptx"), 1).text ==
          "no kernel's name holds '': expected a part of one, as KERNEL=rmsnorm_forward_kernel\n");
}

TEST_CASE_METHOD(Folder, "scripts: without nvcc make test says what it does not run", "[scripts]") {
  for (const bool there : {false, true}) {
    const std::string text = run(std::string("make -C {repo} -n test NVCC=") + (there ? "/usr/bin/true" : "")).text;
    REQUIRE(contains(text, "scripts/run_tests.sh "));
    REQUIRE(contains(text, "nvcc was not found") == !there);
  }
}

TEST_CASE_METHOD(
    Folder, "scripts: gpu-check has every test that runs kernels, and in each cases that compute-sanitizer is to watch",
    "[scripts]") {
  const std::string names = " " + replaced(make_variable(*this, "GPU_TESTS", "exit 9"), "\\s+", " ");
  for (const std::string& name : words_of(names)) {
    INFO(name);
    REQUIRE(contains(contents("tests/" + name + ".cpp"), "[bitwise]\")"));
  }
  REQUIRE(says(names, {" test_mma ", " test_bf16 ", " test_gated_delta ", " test_trainer ", " test_matrix ",
                       " test_recompute ", " test_cached_model ", " test_quantized_model ", " test_generate "}));
}

TEST_CASE_METHOD(Folder, "scripts: what a GPU's machine gets is whole, and runs where it is unpacked", "[scripts]") {
  NEEDS("command -v tar strip", "tar or strip", "scripts/gpu_pack.sh");
  done("cp /bin/true train; cp /bin/true bench; cp /bin/true test_a; cp /bin/true test_b");
  const std::string said = done(
      "{repo}/scripts/gpu_pack.sh $PWD/gpu.tar.gz $PWD/train $PWD/bench $PWD/test_a $PWD/test_b --cublas $PWD/test_b");
  REQUIRE(contains(said, "gpu.tar.gz: "));
  done(
      "mkdir away && cd away && tar xzf ../gpu.tar.gz && ls gpu/train gpu/programs/test_b gpu/scripts/gpu_check.py && "
      "ls gpu/tests/fixtures/small_models.txt");
  // The check begins with the GPU; the programs that it is given lie beside it.
  program("bin/nvidia-smi", "echo no devices; exit 9");
  const Said check = ended(run("PATH=$PWD/bin:$PATH away/gpu/check out"), 1);
  REQUIRE(contains(check.text, "no GPU answers here: nvidia-smi: no devices"));
  REQUIRE(
      says(read("away/gpu/check"),
           {"export COMMIT=",
            "\"$out/gpu_check.json\"  programs/bench programs/test_a programs/test_b --cublas programs/test_b ||"}));
}
