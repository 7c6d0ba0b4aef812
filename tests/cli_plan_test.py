"""Planning for many ranks without starting them: what is printed, and what is refused."""

import json
import os
import sys

sys.path.insert(0, __file__.rpartition("/")[0])
from support import cli, tap

COMMAND_LINE, MEMORY = 2, 4

CLUSTER = {"matmul_flops": 1e12, "comm_bytes": 1e9, "network_bytes": 1e8, "ranks_per_node": 4, "device_shares_cores": False}


class PlanOfManyRanks(cli.CliTest):
    def setUp(self):
        super().setUp()
        self.write("cluster.json", json.dumps(CLUSTER))

    def planned(self, ranks, *more, changes=(), model="gpt2-tiny"):
        return self.plan(self.config(*changes), "--ranks", str(ranks), "--profile", "cluster.json", *more, model=model, data=())

    def arguments(self, command, config, *more, data=(), **inputs):
        arguments = super().arguments(command, config, *more, data=data, **inputs)
        if not data:
            arguments.remove("--data")
        return arguments

    def test_the_world_is_the_one_asked_for(self):
        world = self.planned(8, "--rank", "3")["world"]
        self.assertEqual((world["ranks"], world["rank"]), (8, 3))
        self.assertEqual(world["tokens_per_step"], 8 * 2 * 128)
        self.assertAlmostEqual(world["tokens_per_s_per_rank"] * 8, world["tokens_per_s"])

    def test_the_optimizer_and_the_bytes_of_its_state_are_named(self):
        lion = {"optimizer": {"type": "Lion"}, "spillway": {"moments": "bf16"}}
        planned = self.planned(1, changes=[lion])
        self.assertEqual(planned["optimizer"], {"kind": "lion", "moments": "bf16", "state_bytes_per_parameter": 6})
        self.assertEqual(planned["state_bytes"], 10 * planned["params"])
        run = self.run_command(self.arguments("plan", self.config(lion), "--ranks", "2", "--profile", "cluster.json"))
        self.assertIn("optimizer lion with bf16 moments, 6 bytes of state a parameter\n", run.out)

    def test_every_rank_holds_its_share(self):
        alone, many = (self.planned(ranks, model="gpt2-10m")["tiers"]["device"]["at_the_peak"]["optimizer state"] for ranks in (1, 8))
        self.assertAlmostEqual(many / alone, 1 / 8, delta=0.005)

    def test_collectives_move_what_the_stage_promises(self):
        world = self.planned(8)["world"]
        model = 2 * self.planned(8)["params"]
        self.assertAlmostEqual(world["reduced_bytes_per_step"] / (model * 7 / 8), 1, delta=0.01)
        # 4 ranks a node: half of a gradient goes to the other node, from each of 4 ranks.
        node = world["gathered_bytes_per_step"] * 4 / 7 + 4 * world["reduced_bytes_per_step"] * 4 / 7
        self.assertAlmostEqual(world["node_network_bytes_per_step"] / node, 1, delta=0.01)

    def test_the_network_between_nodes_slows_a_step(self):
        within, between = (self.planned(ranks) for ranks in (4, 8))
        self.assertGreater(between["lanes"]["comm"]["busy_ms"], 2 * within["lanes"]["comm"]["busy_ms"])
        self.assertEqual(between["binding_lane"], "comm")
        self.assertEqual(between["rates"]["ranks_per_node"], 4)

    def test_text_names_rank_and_collectives(self):
        run = self.run_command(self.arguments("plan", self.config(), "--ranks", "8", "--profile", "cluster.json"))
        self.assertEqual(run.status, 0, run.err)
        for words in ("rank 0 of 8:", "each of 8 ranks:", "4 ranks a node", "at 0.1 GB/s"):
            self.assertIn(words, run.out)

    def test_memory_of_this_machine_limits_nothing_but_the_configuration_does(self):
        huge = {"spillway": {"device_memory": "100TiB", "host_memory": "100TiB"}}
        self.assertEqual(self.planned(8, changes=[huge])["tiers"]["device"]["budget"], 100 << 40)
        self.assertIsNone(self.planned(8)["tiers"]["host"]["budget"])
        run = self.run_command(self.arguments("plan", self.config({"spillway": {"device_memory": "100KiB"}}), "--ranks", "8", "--profile", "cluster.json"))
        self.assert_refused(run, MEMORY, "does not fit", "spillway.device_memory")

    def test_folders_of_other_machines_need_not_exist(self):
        self.planned(8, changes=[cli.offload("nvme", "nvme", "/no/such/folder")])

    def test_many_ranks_are_planned_quickly(self):
        self.assertEqual(self.planned(4096)["world"]["ranks"], 4096)

    def test_what_makes_no_sense_is_refused(self):
        config = self.config()
        for more, words in {
            ("--ranks", "0"): ("--ranks", "'0'", "at least 1"),
            ("--ranks", "1000000"): ("--ranks 1000000", "65536"),
            ("--ranks", "8", "--rank", "8"): ("--rank 8", "world of 8", "0 to 7"),
            ("--rank", "1"): ("--rank needs --ranks",),
            ("--profile", "cluster.json"): ("--profile needs --ranks",),
            ("--ranks", "8", "--profile", "none.json"): ("none.json", "cannot open"),
        }.items():
            with self.subTest(" ".join(more)):
                self.assert_refused(self.run_command(self.arguments("plan", config, *more)), COMMAND_LINE, *words)

    def test_a_batch_that_the_ranks_cannot_share_is_refused(self):
        run = self.run_command(self.arguments("plan", self.config({"train_batch_size": 20}), "--ranks", "8", "--profile", "cluster.json"))
        self.assert_refused(run, COMMAND_LINE, "train_batch_size", "20")


class PlanOfNvmeFolders(cli.CliTest):
    def test_room_is_what_their_file_systems_have_each_counted_once(self):
        for name in ("a", "b"):
            self.path(name).mkdir()
        config = self.config(cli.offload(param="nvme", optimizer="nvme", path=["a", "b"]))
        run = self.run_command(self.arguments("plan", config, "--json"))
        self.assertEqual(run.status, 0, run.err)
        self.assertIn("'a' and 'b' are on one file system", run.err)
        free = os.statvfs(self.folder)
        self.assertAlmostEqual(json.loads(run.out)["tiers"]["nvme"]["budget"] / (free.f_bavail * free.f_frsize), 1, delta=0.3)

    def test_one_folder_twice_is_refused(self):
        self.path("a").mkdir()
        self.path("link").symlink_to("a")
        run = self.run_command(self.arguments("plan", self.config(cli.offload(optimizer="nvme", path=["a", "link"]))))
        self.assert_refused(run, COMMAND_LINE, "offload_optimizer.nvme_path", '"a" and "link" are the same folder')


tap.main()
