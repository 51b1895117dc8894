# CIFAR-10 with CIFAR-100's pipeline, from {root}/cifar-10-batches-py. To fetch the files once:
#   python -c "from torchvision.datasets import CIFAR10; CIFAR10('data/cifar10', download=True)"
_base_ = './cifar100.py'

data_root = '{{$LAPE_MM_CIFAR10:data/cifar10}}'
bgr_mean = [113.8575, 122.961, 125.307]
bgr_std = [66.708, 62.0925, 62.985]

train_pipeline = _base_.train_pipeline
train_pipeline[4].hparams.update(pad_val=[114, 123, 125])
train_pipeline[5].update(fill_color=bgr_mean, fill_std=bgr_std)
train_dataloader = dict(
    dataset=dict(type='CIFAR10', data_root=data_root, pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(type='CIFAR10', data_root=data_root))
test_dataloader = val_dataloader
