"""The arithmetic of the full-scale runs."""
import json
from pathlib import Path

import large_runs
from mmengine.config import Config


def test_hours_are_images_times_arithmetic_over_the_rate():
    def row(config, gflops):
        return dict(config=f'configs/{config}', size=[224, 200], images=3_600_000, gflops=gflops)
    record = dict(tflops=20., rows=[row('deit/deit-tiny-mpvg_4xb256-300e_in1k.py', 40.),
                                    row('upernet/upernet_vit-adapter-tiny-mpvg_x.py', 200.)])
    deit, upernet = large_runs.table(record).splitlines()[-2:]
    # 144 PFLOP at 20 TFLOP/s are 7200 s; UperNet starts from the DeiT
    assert deit.endswith('| 224×200 | 40.0 | 2.0 | 0.3 |')
    assert upernet.endswith('| 200.0 | 12.0 | 1.7 |')


def test_the_schedules_of_all_configs():
    images = {path.name: large_runs.images_of(Config.fromfile(path), path)
              for path in large_runs.configs()}
    assert images['deit-tiny-mpvg_4xb256-300e_in1k.py'] == 300 * 1_281_167
    assert images['upernet_vit-adapter-tiny-mpvg_4xb2-160k_ade20k-512x512.py'] == 160_000 * 8
    assert images['upernet_vit-adapter-tiny-mpvg_8xb2-160k_ade20k-512x512.py'] == 160_000 * 16
    record = json.loads(large_runs.RECORD.read_text())
    assert {Path(row['config']).name: row['images'] for row in record['rows']} == images
