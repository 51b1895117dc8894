"""The equations of the MPVG paper in float64, from a state dict and without the models' methods."""
import torch
import torch.nn.functional as F


class Reference:
    """The operations of a transformer, by the names of their weights.

    ``layer_norm``, ``linear``, ``conv`` and ``batch_norm`` take a name and a tensor.
    """

    def __init__(self, model, *, heads, eps):
        self.state = {name: value.double() for name, value in model.state_dict().items()
                      if value.is_floating_point()}
        self.heads, self.eps = heads, eps

    def weights(self, name):
        return self.state[f'{name}.weight'], self.state.get(f'{name}.bias')

    def layer_norm(self, name, x):
        return F.layer_norm(x, x.shape[-1:], *self.weights(name), self.eps)

    def linear(self, name, x):
        return F.linear(x, *self.weights(name))

    def conv(self, name, x, **how):
        return F.conv2d(x, *self.weights(name), **how)

    def batch_norm(self, name, x):
        return F.batch_norm(x, self.state[f'{name}.running_mean'],
                            self.state[f'{name}.running_var'], *self.weights(name))

    def attention(self, name, x):
        q, k, v = self.linear(f'{name}.qkv', x).unflatten(2, (3, self.heads, -1)) \
            .permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / q.shape[-1] ** .5).softmax(-1)
        return self.linear(f'{name}.proj', (weights @ v).transpose(1, 2).flatten(2))

    def mlp(self, first, second, x):
        return self.linear(second, F.gelu(self.linear(first, x)))

    def tokens(self, patches):
        """A map (B, C, h, w) as tokens, after a class token if the model has one."""
        x = patches.flatten(2).transpose(1, 2)
        if 'cls_token' not in self.state:
            return x
        return torch.cat([self.state['cls_token'].expand(len(x), -1, -1), x], dim=1)

    def encode(self, x, joining, *, depth, feed_forward, norm='norm1', attn='attn'):
        """The tokens after each layer; ``feed_forward`` takes a block's name and the tokens."""
        received, outputs = self.state['pos_embed'], []
        if joining != 'lape':
            x = x + received                                                       # eq. 1, 8
        for layer in range(depth):
            block = f'blocks.{layer}'
            y = self.layer_norm(f'{block}.{norm}', x)
            if joining == 'lape' or joining in ('pvg', 'mpvg') and layer:
                received = self.layer_norm(f'{block}.pe_norm', received)           # eq. 7, 10
                y = y + received
            x = x + self.attention(f'{block}.{attn}', y)                           # eq. 2, 6, 9
            x = feed_forward(block, x)                                             # eq. 3
            outputs.append(x)
        return outputs

    def post_norm(self, joining):
        """MPVG's last term (eq. 11), or 0."""
        return self.layer_norm('last_pe_norm', self.state['pos_embed']) if joining == 'mpvg' else 0

    def pool(self, x):
        """(B, T, C) to (B, C): the class token or the mean."""
        return x[:, 0] if 'cls_token' in self.state else x.mean(1)
