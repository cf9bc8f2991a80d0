// scripts: what watches over the compiled kernels and over a GPU, on input made here: planted PTX, planted words of ptxas,
// and programs that answer as nvidia-smi and compute-sanitizer would.
#include <nlohmann/json.hpp>

#include "tests/catch.h"
#include "tests/script.h"

using namespace gated;

TEST_CASE("scripts: the lint refuses PTX that the CPU does not follow bit for bit", "[scripts]") {
  const Folder f;
  const std::string rounded =
      "\tadd.rn.f32 \t%f1, %f2, %f3;\n\t@%p1 bra \t$L__BB0_2;\n\tmax.s32 \t%r1, %r2, 0;\n"
      "\tatom.global.add.u32 \t%r1, [%rd1], 1;\n\tfma.rn.f32 \t%f1, %f2, %f3, %f4;\n\tcvt.rn.bf16x2.f32 \t%r1, %f1, "
      "%f2;\n"
      "\tmma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 \t{%f1, %f2}, {%r1}, {%r2}, {%f3, %f4};\n"
      "\tldmatrix.sync.aligned.m8n8.x4.shared.b16 \t{%r1}, [%r2];\n\tcp.async.cg.shared.global \t[%r1], [%rd1], 16;\n";
  f.write("a.ptx", rounded);
  REQUIRE(f.run("{repo}/scripts/ptx_lint.sh a.ptx").exit_code == 0);
  for (const char* bad : {"add.f32",
                          "mul.ftz.f32",
                          "div.approx.f32",
                          "div.full.f32",
                          "sqrt.approx.ftz.f32",
                          "ex2.approx.f32",
                          "fma.rz.f32",
                          "mad.f32",
                          "max.f32",
                          "min.f32",
                          "max.NaN.f32",
                          "min.ftz.f32",
                          "max.f64",
                          "min.bf16x2",
                          "add.rn.bf16x2",
                          "fma.rn.bf16",
                          "mul.f16",
                          "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
                          "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16",
                          "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16",
                          "cvt.rz.bf16x2.f32",
                          "cvt.rna.tf32.f32",
                          "cvt.rn.satfinite.e4m3x2.f32",
                          "max.xorsign.abs.f32",
                          "atom.global.add.f32",
                          "red.global.add.f32",
                          "@%p3 max.f32",
                          "@!%p3 min.f32"}) {
    f.write("a.ptx", rounded + "\t" + bad + " \t%f1, %f2, %f3;\n");
    const Said said = f.run("{repo}/scripts/ptx_lint.sh a.ptx");
    INFO(bad << ": " << said.text);
    REQUIRE(said.exit_code == 1);
    REQUIRE(contains(said.text, bad));
    REQUIRE(contains(said.text, "FAIL  ptx_lint a.ptx: the CPU does not give the bits of the instructions above"));
  }
  // The maximum with +0 is the CPU's x > 0 ? x : 0; with -0 it is not.
  f.write("a.ptx", rounded + "\tmax.f32 \t%f75, %f30, 0f00000000;\n");
  REQUIRE(f.run("{repo}/scripts/ptx_lint.sh a.ptx").exit_code == 0);
  f.write("a.ptx", rounded + "\tmax.f32 \t%f75, %f30, 0f80000000;\n\tmin.f32 \t%f75, %f30, 0f00000000;\n");
  REQUIRE(count(f.run("{repo}/scripts/ptx_lint.sh a.ptx").text, "%f75") == 2);

  f.write("a.ptx", "\tmov.u32 \t%r1, %tid.x;\n");
  REQUIRE(contains(f.run("{repo}/scripts/ptx_lint.sh a.ptx").text, "no floating-point operation in it"));
  REQUIRE(f.run("{repo}/scripts/ptx_lint.sh").exit_code == 2);
  const Said missing = f.run("{repo}/scripts/ptx_lint.sh missing.ptx");
  REQUIRE(missing.exit_code == 1);
  REQUIRE(missing.text == "FAIL  ptx_lint missing.ptx: cannot be read\n");
}

// Of which +0 and -0 C leaves the larger open.
TEST_CASE("scripts: no kernel asks for fmaxf or fminf", "[scripts]") {
  const Folder f;
  // Comments may speak of them.
  const auto found = [&](const std::string& files) {
    return f
        .run("for file in " + files +
             "; do sed 's,//.*,,' $file | grep -nE '\\bf(max|min)f?\\(' | sed \"s,^,$file:,\"; done")
        .text;
  };
  f.write("a.cu", "// fmaxf(a, b)\ny = a / fmaxf(b, c);\nz = fmin(a, b);  // fmax(a, b)\nrow_fmax(a);\n");
  REQUIRE(found("a.cu") == "a.cu:2:y = a / fmaxf(b, c);\na.cu:3:z = fmin(a, b);  \n");
  REQUIRE(found("{repo}/kernels/*.cu {repo}/kernels/*.cuh {repo}/core/*.cuh") == "");
}

namespace {

// What ptxas -v says of one kernel.
std::string ptxas_says(const char* kernel, const char* gpu, int registers, int shared, int spills) {
  return format(
      "ptxas info    : Compiling entry function '%s' for '%s'\nptxas info    : Function properties for %s\n"
      "    %d bytes stack frame, %d bytes spill stores, %d bytes spill loads\n"
      "ptxas info    : Used %d registers, used 1 barriers, %s400 bytes cmem[0]\nptxas info    : Compile time = 1.0 "
      "ms\n",
      kernel, gpu, kernel, spills, spills, spills, registers, shared ? format("%d bytes smem, ", shared).c_str() : "");
}
constexpr const char *plain_kernel = "_ZN10gated_nvcc12adamw_kernelEPfm",
                     *tile_kernel = "_ZN10gated_nvcc11tile_kernelILb1ELi64EEEvPfm";

}  // namespace

TEST_CASE("scripts: what kernels take of a GPU is held to the table", "[scripts]") {
  const Folder f;
  f.write("k.ptx", "// Cuda compilation tools, release 13.0, V13.0.88\n.version 9.0\n.target sm_80\n");
  const auto check = [&](const std::string& log, const std::string& option = "") {
    f.write("k.ptxas", "kernels.cu(3): warning: a line of nvcc's own\n" + log);
    return f.run("KERNEL_RESOURCES=table.txt {repo}/scripts/kernel_resources.sh " + option + " k.ptxas");
  };
  const auto log = [](int plain_registers, int plain_spills, int tile_registers, int tile_shared, int tile_spills) {
    return ptxas_says(plain_kernel, "sm_80", plain_registers, 0, plain_spills) +
           ptxas_says(tile_kernel, "sm_80", tile_registers, tile_shared, tile_spills);
  };
  REQUIRE(check(log(40, 0, 90, 8448, 16), "--update").exit_code == 0);
  // The kernel that takes little is not in it; 90 registers leave as many warps as 96.
  REQUIRE(contains(f.read("table.txt"), "\ntile_kernel<true,64> sm_80 96 8448 16 16\n"));
  REQUIRE(!contains(f.read("table.txt"), "adamw"));

  REQUIRE(check(log(40, 0, 90, 8448, 16)).text == "ok    kernel_resources: 2 kernels\n");
  REQUIRE(check(log(64, 0, 96, 8448, 0)).exit_code == 0);
  const auto refused = [&](const std::string& log, const std::string& why) {
    const Said said = check(log);
    INFO(said.text);
    return said.exit_code == 1 && contains(said.text, why) && contains(said.text, "--update");
  };
  REQUIRE(refused(log(65, 0, 90, 8448, 16), "FAIL  adamw_kernel for sm_80: 65 registers, expected at most 64"));
  REQUIRE(refused(log(40, 4, 90, 8448, 16), "FAIL  adamw_kernel for sm_80: spills 4 bytes and loads 4"));
  REQUIRE(refused(log(40, 0, 97, 8448, 16), "tile_kernel<true,64> for sm_80: 97 registers, expected at most 96"));
  REQUIRE(refused(log(40, 0, 90, 8452, 16), "8452 bytes of static shared memory, expected 8448"));
  REQUIRE(refused(log(40, 0, 90, 8448, 20), "spills 20 bytes and loads 20 of them again, expected at most 16 and 16"));

  // Another compiler decides otherwise on registers and spills, but not on shared memory.
  f.write("k.ptx", "// Cuda compilation tools, release 12.4, V12.4.1\n.version 9.0\n.target sm_80\n");
  REQUIRE(contains(check(log(200, 0, 200, 8448, 99)).text,
                   "not compared: the table is of nvcc 13.0, PTX of sm_80, this is nvcc 12.4"));
  REQUIRE(check(log(200, 0, 200, 8448, 99)).exit_code == 0);
  REQUIRE(refused(log(40, 0, 90, 8452, 16), "8452 bytes of static shared memory"));
  REQUIRE(contains(check("").text, "no kernel in it"));
}

TEST_CASE("scripts: setup says which options it has, and what --into cannot bring", "[scripts]") {
  const Folder f;
  for (const char* option : {"--into", "--into=", "--all"}) {
    const Said said = f.run(format("{repo}/scripts/setup.sh %s", option));
    REQUIRE(said.exit_code == 1);
    REQUIRE(said.text == format("setup: unknown option %s; expected --bench, --plots or --into=DIR\n", option));
  }
  const Said said = f.run("{repo}/scripts/setup.sh --plots --into=deps");
  REQUIRE(said.exit_code == 1);
  REQUIRE(contains(said.text, "setup: --into is for libraries; matplotlib comes with: python3 -m pip"));
  REQUIRE(!fs::exists(f.path / "deps"));
}

TEST_CASE("scripts: ./train is found from any folder, and missed in a line", "[scripts]") {
  if (!answers("python3 --version")) {
    WARN("no python3 here: scripts that start ./train were not looked at");
    return;
  }
  const Folder f;
  const Said table = f.run("{repo}/scripts/memory_table.py '--data=bigram-backcopy --layers=1 --hidden=32'");
  INFO(table.text);
  REQUIRE(table.exit_code == 0);
  REQUIRE(contains(table.text, "\n| `--data=bigram-backcopy --layers=1 --hidden=32` | "));
  f.run("cp -r {repo}/scripts .");
  for (const char* script : {"memory_table.py", "compare_choices.py", "compare_generate.py", "tables.py p1-4"})
    require_refused_at_once(f.run(format("scripts/%s", script)), "train: not found: run make first");
}

TEST_CASE("scripts: CUDA is found in CUDA_HOME, then on the path", "[scripts]") {
  const Folder f;
  f.program("here/bin/nvcc", "");
  f.program("here/compute-sanitizer/compute-sanitizer", "");
  f.program("path/nvcc", "");
  const std::string here = f.path / "here", path = f.path / "path";
  const auto find = [&](const std::string& environment, const std::string& what) {
    return f.run("PATH=" + path + ":$PATH " + environment + " {repo}/scripts/find_cuda.sh " + what).text;
  };
  REQUIRE(find("CUDA_HOME=" + here, "nvcc") == here + "/bin/nvcc\n");
  REQUIRE(find("CUDA_HOME=" + here, "compute-sanitizer") == here + "/compute-sanitizer/compute-sanitizer\n");
  REQUIRE(find("CUDA_HOME=/nowhere", "nvcc") == path + "/nvcc\n");
  REQUIRE(find("CUDA_HOME=", "nvcc") == path + "/nvcc\n");
  REQUIRE(find("CUDA_HOME=", "a-program-of-nobody") == "");
}

namespace {

// A GPU that is not there: programs that answer, and write down what they were asked.
struct FakeGpu : Folder {
  FakeGpu() {
    program("bin/nvidia-smi", "echo 'Fake 9000, 555.1'");
    program("cuda/bin/nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'");
    program("cuda/bin/compute-sanitizer",
            "echo \"$2 $5 $6 fill=${GATED_FILL:-on}\" >>asked\n[ \"$5\" != \"$(cat fails 2>/dev/null)\" ]");
    program("train", "case $1 in --device=cpu) echo train >>asked;; esac\necho 'fingerprint of the weights: 0123'");
    program("bench", "echo bench >>asked\nprintf '[\\n{\"row\": 1}\\n]\\n' >$1");
    for (const char* test : {"test_a", "test_b"})
      program(test, format("echo %s >>asked\n[ ./%s != \"$(cat fails 2>/dev/null)\" ]", test, test));
  }
  Said check(const std::string& environment = "") const {
    return run("rm -f asked; PATH=" + (path / "bin").string() + ":$PATH CUDA_HOME=" + (path / "cuda").string() + " " +
               environment + " {repo}/scripts/gpu_check.sh gpu.json ./bench ./test_a ./test_b");
  }
  // How many checks the last call ran.
  size_t asked() const { return count(read("asked"), "\n"); }
  nlohmann::json result() const { return nlohmann::json::parse(read("gpu.json")); }
};
constexpr size_t all_checks = 2 + 2 + 4 * 2 + 1;

}  // namespace

TEST_CASE("scripts: gpu-check runs every stage, and writes down what came of it", "[scripts]") {
  const FakeGpu f;
  const Said said = f.check();
  INFO(said.text);
  REQUIRE(said.exit_code == 0);
  REQUIRE(contains(said.text, "13 passed, 0 failed, 0 left"));
  REQUIRE(f.asked() == all_checks);
  for (const char* asked : {"test_a\n", "train\n", "bench\n", "memcheck ./test_b [bitwise] fill=on\n",
                            "racecheck ./test_a [bitwise] fill=on\n", "synccheck ./test_a [bitwise] fill=on\n",
                            "initcheck ./test_a [bitwise] fill=off\n"})
    REQUIRE(contains(f.read("asked"), asked));
  const nlohmann::json result = f.result();
  REQUIRE(result["device"] == "Fake 9000");
  REQUIRE(result["driver"] == "555.1");
  REQUIRE(result["nvcc"] == "13.0");
  REQUIRE(result["checks"].size() == all_checks);
  for (const auto& check : result["checks"]) REQUIRE(check["outcome"] == "ok");
  REQUIRE(result["checks"][0]["check"] == "bitwise test_a");
  REQUIRE(result["checks"][0]["command"] == "./test_a");
  REQUIRE(result["bench"][0]["row"] == 1);
}

TEST_CASE("scripts: gpu-check goes on where it stopped", "[scripts]") {
  const FakeGpu f;
  REQUIRE(f.check("STAGES='bitwise racecheck'").exit_code == 0);
  REQUIRE(f.asked() == 4);
  REQUIRE(f.check().exit_code == 0);
  REQUIRE(f.asked() == all_checks - 4);
  REQUIRE(f.result()["checks"].size() == all_checks);
  REQUIRE(f.result()["bench"][0]["row"] == 1);
  REQUIRE(f.check().exit_code == 0);  // nothing left
  REQUIRE(f.asked() == 0);
  REQUIRE(f.result()["bench"][0]["row"] == 1);

  // Other programs: all begins anew.
  f.program("test_b", "echo another >>asked");
  REQUIRE(contains(f.check().text, "gpu.json is of another build or GPU"));
  REQUIRE(f.asked() == all_checks);
}

TEST_CASE("scripts: gpu-check begins no check after its minutes, and each run goes on", "[scripts]") {
  const FakeGpu f;
  f.program("bin/date", "n=$(cat now 2>/dev/null || echo 0); echo $((n + 7)) >now; echo $n");  // 7 s a look
  size_t runs = 0, asked = 0;
  int exit_code = 2;
  for (; exit_code == 2 && runs < 20; runs++) {
    const Said said = f.check("MINUTES=1");
    exit_code = said.exit_code;
    INFO(said.text);
    REQUIRE(f.asked() > 0);
    REQUIRE(f.asked() < all_checks);
    REQUIRE(contains(said.text, "the same command goes on") == (exit_code == 2));
    asked += f.asked();
  }
  REQUIRE(exit_code == 0);
  REQUIRE(runs > 2);
  REQUIRE(asked == all_checks);
}

TEST_CASE("scripts: gpu-check says what failed, and tries that again when all has been run", "[scripts]") {
  const FakeGpu f;
  f.write("fails", "./test_b");
  const Said said = f.check();
  INFO(said.text);
  REQUIRE(said.exit_code == 1);
  REQUIRE(contains(said.text, "8 passed, 5 failed, 0 left"));
  REQUIRE(contains(said.text, "FAIL: exit 1; its log: ./gpu-check.logs/racecheck_test_b.log"));
  REQUIRE(f.check().exit_code == 1);
  REQUIRE(f.asked() == 5);
  REQUIRE(f.result()["checks"].size() == all_checks);
  fs::remove(f.path / "fails");
  REQUIRE(f.check().exit_code == 0);
  REQUIRE(f.asked() == 5);

  f.program("test_a", "sleep 5");
  REQUIRE(contains(f.check("CHECK_SECONDS=1 STAGES=bitwise").text, "FAIL: longer than 1 s"));
  f.program("train", "echo \"fingerprint of the weights: $1\"");
  const Said differ = f.check("STAGES=fingerprint");
  REQUIRE(differ.exit_code == 1);
  REQUIRE(contains(differ.text, "cpu --device=cpu, cuda --device=cuda"));
}

TEST_CASE("scripts: gpu-check needs a GPU, stages that exist, and names a missing compute-sanitizer", "[scripts]") {
  const FakeGpu f;
  REQUIRE(contains(f.check("STAGES='bitwise speed'").text, "no stage is called 'speed'; expected some of: bitwise"));
  fs::remove(f.path / "cuda/bin/compute-sanitizer");
  const Said said = f.check("STAGES='bitwise memcheck'");
  if (f.run("{repo}/scripts/find_cuda.sh compute-sanitizer").text.empty()) {
    REQUIRE(said.exit_code == 1);
    REQUIRE(contains(said.text, "no compute-sanitizer in CUDA_HOME ("));
    REQUIRE(contains(said.text, "2 passed, 2 failed, 0 left"));
  }
  f.program("bin/nvidia-smi", "exit 9");
  REQUIRE(f.check().exit_code == 1);
  REQUIRE(contains(f.check().text, "no GPU answers here"));
}
